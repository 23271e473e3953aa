#include <algorithm>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/ddp.h"
#include "lockstep/tensor/random.h"
#include "lockstep/train/check_finite.h"
#include "src/ddp/replicas.h"
#include "src/train/trainer_impl.h"

namespace lockstep::train {

namespace {

void check_epochs(const FitOptions& options) {
  if (options.initial_epoch < 0 || options.epochs < 1 || options.epochs < options.initial_epoch)
    throw InvalidArgument(
        "Trainer::fit: epochs {} after initial_epoch {}: epochs counts those before initial_epoch, too, and is at least 1", options.epochs,
        options.initial_epoch);
  if (options.log_every < 1 || options.max_steps < 0)
    throw InvalidArgument("Trainer::fit: log_every {} must be positive, max_steps {} not negative", options.log_every, options.max_steps);
  for (const auto& callback : options.callbacks)
    if (!callback) throw InvalidArgument("Trainer::fit: one of the callbacks is null");
}

std::int64_t steps_of(const data::Pipeline& training, const FitOptions& options, std::int64_t parts, int rank) {
  const std::int64_t batch = training.batch_size(), whole = training.batches();
  if (batch % parts != 0)
    throw InvalidArgument("Trainer::fit: rank {}: a batch of {} samples cannot be split evenly among {} devices: choose a multiple of {}",
                          rank, batch, parts, parts);
  if (whole == 0)
    throw InvalidArgument("Trainer::fit: rank {}: a batch of {} samples is larger than the set, which has {}", rank, batch,
                          training.size());
  if (options.steps_per_epoch < 0 || options.steps_per_epoch > whole)
    throw InvalidArgument("Trainer::fit: rank {}: steps_per_epoch {}: an epoch has {} steps of {} samples", rank, options.steps_per_epoch,
                          whole, batch);
  return options.steps_per_epoch > 0 ? options.steps_per_epoch : whole;
}

// While it lives, the loss counts metrics, and dropout draws as one rank with all samples of the step would.
class TrainingMode {
 public:
  TrainingMode(bool& counts, bool wanted, std::int64_t first) : counts_(counts) {
    counts_ = wanted;
    set_first_sample(first);
  }
  ~TrainingMode() {
    counts_ = false;
    set_first_sample(before_);
  }
  TrainingMode(const TrainingMode&) = delete;
  TrainingMode& operator=(const TrainingMode&) = delete;

 private:
  bool& counts_;
  const std::int64_t before_ = first_sample();
};

ProgressOptions progress_of(const FitOptions& options, std::int64_t steps, bool first_rank) {
  return {.enabled = options.progress && first_rank,
          .terminal_width = terminal_width(),
          .total_steps = options.epochs * steps,
          .steps_per_epoch = steps,
          .log_every = options.log_every,
          .samples = "samples"};
}

template <typename Call>
void for_each(const FitOptions& options, const Call& call) {
  for (const auto& callback : options.callbacks) call(*callback);
}

}  // namespace

const History& Trainer::fit(const data::Pipeline& given, const FitOptions& options) {
  Impl& impl = *impl_;
  Strategy& strategy = impl.compiled("fit");
  const Place place = impl.place();
  std::optional<data::Pipeline> batches, validation;
  std::int64_t steps = 0;
  check_together(impl.ranks(), [&] {
    check_epochs(options);
    batches = impl.batched("fit", given, options.batch_size, /*wants_targets=*/true);
    if (given.batch_size() == 0 && !given.is_shuffled() && options.shuffle) batches = batches->shuffle(0, options.seed);
    if (options.validation) validation = impl.batched("fit", *options.validation, 0, /*wants_targets=*/true);
    steps = steps_of(*batches, options, impl.parts(), place.rank);
  });
  const data::Pipeline& training = *batches;
  const auto group = impl.has_ranks() ? impl.group() : nullptr;
  if (impl.ranks() != nullptr)
    check_same_lines(*group,
                     {sizes_text("", training), fmt::format("{} steps an epoch", steps),
                      validation ? sizes_text("for validation ", *validation) : "no validation",
                      fmt::format("epochs {} to {}, at most {} steps", options.initial_epoch, options.epochs, options.max_steps)},
                     "Trainer::fit", "gave different sets or options");
  const auto across_ranks = [&](double value, ReduceOp op) {
    if (group && group->world_size() > 1) group->all_reduce(std::span(&value, 1), op);
    return value;
  };
  const std::int64_t first_step = step_;
  const auto is_last = [&](std::int64_t step) { return options.max_steps > 0 && step - first_step >= options.max_steps; };
  Progress progress(progress_of(options, steps, is_first_rank()));

  bool was_whole = true;  // the last epoch: max_steps may end one within
  const auto train_epoch = [&](std::int64_t epoch) {
    const TrainingMode mode(impl.counts, options.training_metrics && !impl.metrics.empty(),
                            place.rank * (training.batch_size() / place.world_size));
    if (!model().is_training()) model().train();  // modules in eval mode within a model that trains were put there on purpose
    const std::int64_t allowed = options.max_steps > 0 ? options.max_steps - (step_ - first_step) : steps;
    if (DistributedDataParallel* const wrapper = strategy.wrapper()) wrapper->begin_epoch(std::min(steps, allowed));
    double sum = 0;
    std::int64_t done = 0;
    auto in_order = training.epoch(epoch, {.place = place, .device = impl.batch_device(), .remainder = data::Remainder::kDrop});
    for (auto& [inputs, targets] : in_order) {
      for_each(options, [&](Callback& callback) { callback.on_step_begin(*this, step_); });
      const float loss = strategy.step(inputs, targets);
      ++step_;
      check_finite(Tensor::full({1}, loss), step_, {.group = group});
      sum += static_cast<double>(loss);
      progress.step(epoch * steps + ++done, loss, training.batch_size());
      const Logs logs = {{"loss", loss}};
      for_each(options, [&](Callback& callback) { callback.on_step_end(*this, step_, logs); });
      if (done == steps || is_last(step_)) break;
    }
    was_whole = done == steps;
    return across_ranks(sum / static_cast<double>(done), ReduceOp::kAvg);
  };
  const auto logs_of_epoch = [&](std::int64_t epoch) {
    const std::vector<Metric*> metrics = impl.training_metrics();
    for (Metric* const metric : metrics) metric->reset();
    Logs logs = {{"loss", train_epoch(epoch)}};
    if (options.training_metrics) {
      reduce_metrics(metrics, group.get());
      for (std::size_t i = 0; i < metrics.size(); ++i) logs.emplace_back(impl.options.metrics[i].name(), impl.metrics[i].value());
    }
    if (validation)
      for (const auto& [name, value] : impl.evaluate(*validation)) logs.emplace_back("val_" + name, value);
    logs.emplace_back("lr", static_cast<double>(strategy.optimizer().lr()));
    return logs;
  };

  impl.guarded([&] {
    stops_ = false;
    for_each(options, [&](Callback& callback) { callback.on_train_begin(*this); });
    stops_ = across_ranks(stops_ ? 1 : 0, ReduceOp::kMax) != 0;
    for (std::int64_t epoch = options.initial_epoch; epoch < options.epochs && !stops_ && !is_last(step_); ++epoch) {
      for_each(options, [&](Callback& callback) { callback.on_epoch_begin(*this, epoch); });
      const Logs logs = logs_of_epoch(epoch);
      history_.add(logs);
      if (was_whole) epoch_ = epoch + 1;
      progress.message(fmt::format("epoch {}/{}: {}", epoch + 1, options.epochs, text_of(logs)));
      for_each(options, [&](Callback& callback) { callback.on_epoch_end(*this, epoch, logs); });
      stops_ = across_ranks(stops_ ? 1 : 0, ReduceOp::kMax) != 0;
    }
    for_each(options, [&](Callback& callback) { callback.on_train_end(*this); });
  });
  return history_;
}

}  // namespace lockstep::train
