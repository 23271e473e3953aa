#include "lockstep/train/trainer.h"

#include <set>

#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/variable.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/core/log.h"
#include "src/ddp/checks/replicas.h"
#include "src/train/files/bare_name.h"
#include "src/train/strategies/strategy_options.h"
#include "src/train/trainer/trainer_impl.h"

namespace lockstep::train {

namespace {

constexpr std::int64_t kUsualBatch = 32;

void check_metrics(const std::vector<NamedMetric>& metrics) {
  std::set<std::string> names = {"loss", "lr"};
  for (const NamedMetric& metric : metrics) {
    if (metric.name().empty()) throw InvalidArgument("Trainer::compile: a metric has no name");
    if (is_of_validation(metric.name()))
      throw InvalidArgument(
          "Trainer::compile: metric '{}': names with val_ are reserved for the validation: choose another",
          metric.name());
    if (!names.insert(metric.name()).second)
      throw InvalidArgument("Trainer::compile: the name of metric '{}' is taken: choose another", metric.name());
  }
}

void check_strategy(const std::string& name, const StrategyOptions& options, const ProcessGroup* group) {
  const StrategyCapabilities& can = strategy_named(name).capabilities;
  if (can.has_stages)
    throw InvalidArgument(
        "Trainer::compile: strategy '{}' has no device with the entire model, which evaluation and checkpoints of a "
        "Trainer need: use make_strategy() in your own loop",
        name);
  if (options.parameter_server.backup_workers > 0 || options.parameter_server.allow_worker_failures)
    throw InvalidArgument(
        "Trainer::compile: strategy '{}' with .{}: fit() makes the same steps on all workers, as Keras' does, and they "
        "add up metrics together: leave it out, or use make_strategy() in your own loop",
        name, options.parameter_server.backup_workers > 0 ? "backup_workers" : "allow_worker_failures");
  if (options.parameter_server.staleness > 0)
    throw InvalidArgument(
        "Trainer::compile: strategy '{}' with .staleness {}: each worker has weights of another moment, but evaluation "
        "and checkpoints of a Trainer need equal ones: leave it out, or use make_strategy() in your own loop",
        name, options.parameter_server.staleness);
  if (can.averages_weights)
    throw InvalidArgument(
        "Trainer::compile: strategy '{}' has different weights on each rank between two averages, but evaluation and "
        "checkpoints of a Trainer need equal ones: use make_strategy() in your own loop",
        name);
  options_of_choice(name, options);
  if (can.has_ranks || group == nullptr || group->world_size() == 1) return;
  throw InvalidArgument(
      "Trainer::compile: rank {}: strategy '{}' drives all devices from one process, and this job has {} ranks, each "
      "of which would train by itself: use {}, or start one process",
      group->rank(), name, group->world_size(), strategies().front().name);
}

// `scope`: the scope in which the Trainer was made.
void check_scope(const std::optional<StrategyChoice>& scope, const CompileOptions& options) {
  const auto here = StrategyChoice::of_thread();
  if (here && here != scope)
    throw InvalidArgument(
        "Trainer::compile: called in the scope of strategy '{}', but this Trainer was made {}: make it in that scope, "
        "too",
        here->name(), scope ? "in another one" : "outside it");
  if (scope) check_is_of_scope(*scope, "Trainer::compile", options.strategy, options.strategy_options);
}

}  // namespace

// -- Impl

Tensor Trainer::Impl::loss(nn::Module& model, const Tensor& outputs, const Tensor& targets) {
  const Tensor loss = options.loss(model, outputs, targets);
  if (!counts) return loss;
  const NoGrad no_grad;
  const Tensor values = cast(detach(outputs), DType::kFloat32).to(cpu_device()), wanted = targets.to(cpu_device());
  const std::lock_guard lock(counting);
  for (const NamedMetric::Running& each : metrics) each.metric->update(values, wanted);
  return loss;
}

std::vector<Metric*> Trainer::Impl::training_metrics() const {
  std::vector<Metric*> all;
  for (const NamedMetric::Running& each : metrics) all.push_back(each.metric.get());
  return all;
}

Strategy& Trainer::Impl::compiled(const char* call) const {
  if (!strategy)
    throw InvalidArgument("Trainer::{}: call compile() first: there are no optimizer, loss and strategy yet", call);
  return *strategy;
}

std::shared_ptr<ProcessGroup> Trainer::Impl::group() const {
  if (strategy)
    if (auto workers = strategy->workers()) return workers;
  return options.strategy_options.group ? options.strategy_options.group : default_process_group();
}

Place Trainer::Impl::place() const { return has_ranks() ? group()->place() : Place{}; }

std::int64_t Trainer::Impl::parts() const {
  const auto devices = static_cast<std::int64_t>(strategy->devices().size());
  return has_ranks() ? group()->world_size() * devices : devices;
}

Device* Trainer::Impl::batch_device() const {
  return strategy->devices().size() == 1 ? strategy->devices().front() : nullptr;
}

data::Pipeline Trainer::Impl::batched(const char* call, const data::Pipeline& set, std::int64_t batch_size,
                                      bool wants_targets, bool may_be_endless) const {
  const int rank = place().rank;
  if (batch_size < 0)
    throw InvalidArgument("Trainer::{}: rank {}: batch_size {} must not be negative", call, rank, batch_size);
  if (batch_size > 0 && set.batch_size() > 0)
    throw InvalidArgument("Trainer::{}: rank {}: got batch_size {} and batches of {} by batch(): set only one of them",
                          call, rank, batch_size, set.batch_size());
  if (set.repeats() != 1 && !(set.repeats() == 0 && may_be_endless))
    throw InvalidArgument(
        "Trainer::{}: rank {}: the set repeats {}: fit() repeats its training set by .epochs, and takes an endless one "
        "with .steps_per_epoch",
        call, rank, set.repeats() == 0 ? "without end" : fmt::format("{} times", set.repeats()));
  if (set.size() < 1)
    throw InvalidArgument("Trainer::{}: rank {}: the data set is empty: at least one sample is needed", call, rank);
  if (wants_targets)
    if (const std::size_t tensors = set.dataset().get(0, 0).size(); tensors < 2)
      throw InvalidArgument(
          "Trainer::{}: rank {}: a sample of the set has {} tensor{}: loss and metrics need an input and a target; "
          "only predict() needs no targets",
          call, rank, tensors, tensors == 1 ? "" : "s");
  return set.batch_size() > 0 ? set : set.batch(batch_size > 0 ? batch_size : kUsualBatch);
}

data::Pipeline Trainer::Impl::batched_together(const char* call, const data::Pipeline& set, std::int64_t batch_size,
                                               bool wants_targets) const {
  std::optional<data::Pipeline> batches;
  on_all_ranks(ranks(), [&] { batches = batched(call, set, batch_size, wants_targets); });
  if (ProcessGroup* const all = ranks())
    check_same_on_all_ranks(*all, fmt::format("Trainer::{}", call), {sizes_text("", *batches)}, "gave different sets");
  return *batches;
}

EvaluateOptions Trainer::Impl::evaluation(const data::Pipeline& set) const {
  const std::vector<Tensor> parameters = strategy->model().parameters();
  return {.batch_size = std::max<std::int64_t>(1, set.batch_size() / place().world_size),
          .device = &parameters.front().device(),
          .group = group(),
          .collate = set.collate()};
}

Logs Trainer::Impl::evaluate(const data::Pipeline& set) const {
  nn::AddedLosses added;  // by the forward of each batch
  nn::Module& model = strategy->model();
  Device& device = options.loss.sees_model() ? model.parameters().front().device() : cpu_device();
  Mean mean([&](const Tensor& outputs, const Tensor& targets) {
    const std::int64_t samples = outputs.shape().dims() == 0 ? 0 : outputs.shape()[0];
    float loss = options.loss(model, outputs.to(device), targets.to(device)).item();
    if (!added.empty()) loss += added.sum().item();
    added.clear();
    return std::vector<float>(static_cast<std::size_t>(samples), loss);
  });
  std::vector<NamedMetric::Running> counted;
  std::vector<Metric*> all = {&mean};
  for (const NamedMetric& metric : options.metrics) all.push_back(counted.emplace_back(metric.make()).metric.get());
  lockstep::train::evaluate(model, set.dataset(), std::span<Metric* const>(all), evaluation(set));
  Logs logs = {{"loss", mean.value()}};
  for (std::size_t i = 0; i < counted.size(); ++i) logs.emplace_back(options.metrics[i].name(), counted[i].value());
  return logs;
}

// -- Trainer

Trainer::Trainer(std::function<std::unique_ptr<nn::Module>()> model)
    : impl_(new Impl{std::move(model), StrategyChoice::of_thread()}) {
  if (!impl_->make_model) throw InvalidArgument("Trainer: the function that makes the model is empty");
}
Trainer::~Trainer() = default;

void Trainer::compile(CompileOptions options) {
  const std::optional<StrategyChoice> scope = impl_->scope;
  const std::optional<StrategyChoice> here =
      scope ? scope : StrategyChoice::of_thread();  // else a mistake, which is reported on all ranks
  const auto given = here ? here->options().group : options.strategy_options.group;
  if (options.strategy.empty()) options.strategy = here ? here->name() : strategies().front().name;
  const StrategyRow* const row = find_strategy(here ? here->name() : options.strategy);
  const auto group = group_of({.group = given}, row == nullptr || !row->kind.capabilities.has_ranks);
  on_all_ranks(group.get(), [&] {
    if (!options.optimizer || !options.loss) throw InvalidArgument("Trainer::compile: .optimizer and .loss are needed");
    check_metrics(options.metrics);
    check_scope(scope, options);
    if (scope) options.strategy_options = scope->options();
    check_strategy(options.strategy, options.strategy_options, group.get());
  });
  auto next = std::unique_ptr<Impl>(new Impl{impl_->make_model, scope, std::move(options)});
  next->job = group;
  Impl* const impl = next.get();  // outlives the strategy, which it owns
  const Training training = {.model = impl->make_model,
                             .optimizer = impl->options.optimizer,
                             .loss = [impl](nn::Module& model, const Tensor& outputs, const Tensor& targets) {
                               return impl->loss(model, outputs, targets);
                             }};
  impl->strategy = scope ? scope->scope([&] { return make_strategy(training); })
                         : make_strategy(impl->options.strategy, training, impl->options.strategy_options);
  if (auto* const worker = impl->strategy->as<CallWorker>()) worker->expect_calls();
  for (const NamedMetric& metric : impl->options.metrics) impl->metrics.push_back(metric.make());
  impl_ = std::move(next);
  history_ = {};
  step_ = epoch_ = 0;
  is_preempted_ = false;
}

Logs Trainer::evaluate(const data::Pipeline& set, const PredictOptions& options) {
  impl_->compiled("evaluate");
  return logs_of_result(impl_->served(*this, [&] {
    const data::Pipeline batches = impl_->batched_together("evaluate", set, options.batch_size, /*wants_targets=*/true);
    return result_of(impl_->guarded([&] { return impl_->evaluate(batches); }));
  }));
}

Tensor Trainer::predict(const data::Pipeline& set, const PredictOptions& options) {
  Strategy& strategy = impl_->compiled("predict");
  Tensor outputs;
  const std::string result = impl_->served(*this, [&] {
    const data::Pipeline batches = impl_->batched_together("predict", set, options.batch_size, /*wants_targets=*/false);
    outputs = impl_->guarded(
        [&] { return lockstep::train::predict(strategy.model(), batches.dataset(), impl_->evaluation(batches)); });
    return strategy.as<CallWorker>() != nullptr ? result_of(outputs) : std::string();
  });
  return outputs.defined() ? outputs : tensor_of_result(result);
}

std::string Trainer::save(const std::string& folder, int keep, const SaveOptions& options) {
  Strategy& strategy = impl_->compiled("save");
  std::string path;  // "" on a server, as on all ranks but the first
  if (impl_->has_failed_step && is_first_rank())
    log::warn(
        "Trainer::save: the last step has failed: this checkpoint's weights are those of a part of epoch {}, which a "
        "fit() that loads it trains from its beginning",
        epoch_);
  impl_->served(*this, [&] {
    ProgramState program =
        program_state_of({history_, impl_->callbacks != nullptr ? states_of(*impl_->callbacks) : impl_->states,
                          impl_->position_now ? impl_->position_now() : impl_->position});
    path = save_checkpoint(folder,
                           {.model = strategy.model(),
                            .optimizer = strategy.optimizer(),
                            .ddp = strategy.wrapper(),
                            .step = step_,
                            .epoch = epoch_,
                            .group = impl_->group(),
                            .keep = keep,
                            .program = program},
                           options);
    return std::string();
  });
  return path;
}

std::optional<CheckpointState> Trainer::load(const std::string& folder) {
  Strategy& strategy = impl_->compiled("load");
  return state_of_result(impl_->served(*this, [&] {
    ProgramState program;
    const auto state = load_checkpoint(folder, {.model = strategy.model(),
                                                .optimizer = strategy.optimizer(),
                                                .ddp = strategy.wrapper(),
                                                .group = impl_->group(),
                                                .program = program});
    if (!state) return result_of(state);
    strategy.update_replicas();
    TrainerState own = trainer_state_of(program, state->epoch, state->folder);
    history_ = std::move(own.history);
    if (impl_->callbacks == nullptr) {  // those of a fit in progress continue as they are
      impl_->states = std::move(own.callbacks);
      impl_->position = std::move(own.position);
      impl_->has_failed_step = false;
      impl_->states_are_loaded = true;
    }
    step_ = state->step;
    epoch_ = state->epoch;
    return result_of(state);
  }));
}

void Trainer::weights_changed() {
  Strategy& strategy = impl_->compiled("weights_changed");
  impl_->served(*this, [&] {
    strategy.update_replicas();
    return std::string();
  });
}

Mode Trainer::mode_of(const std::string& name) const {
  const std::string bare = bare_name(name);
  if (bare == "loss") return Mode::kLess;
  for (std::size_t i = 0; i < impl_->metrics.size(); ++i)
    if (impl_->options.metrics[i].name() == bare) return impl_->metrics[i].metric->better();
  return Mode::kAuto;
}

Strategy& Trainer::strategy() { return impl_->compiled("strategy"); }
std::shared_ptr<ProcessGroup> Trainer::group() const { return impl_->group(); }

bool Trainer::is_first_rank() const {
  const auto all = impl_->group();
  return !impl_->is_server() && (!all || all->rank() == 0);
}

}  // namespace lockstep::train
