#include <algorithm>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/ddp.h"
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

// While it lives, the loss counts metrics.
class TrainingMode {
 public:
  TrainingMode(bool& counts, bool wanted) : counts_(counts) { counts_ = wanted; }
  ~TrainingMode() { counts_ = false; }
  TrainingMode(const TrainingMode&) = delete;
  TrainingMode& operator=(const TrainingMode&) = delete;

 private:
  bool& counts_;
};

ProgressOptions progress_of(const FitOptions& options, std::int64_t steps, bool first_rank) {
  return {.enabled = options.progress && first_rank,
          .terminal_width = terminal_width(),
          .total_steps = options.epochs * steps,
          .steps_per_epoch = steps,
          .log_every = options.log_every,
          .samples = "samples"};
}

}  // namespace

class Trainer::Impl::Fit {
 public:
  Fit(Trainer& trainer, const data::Pipeline& given, const FitOptions& options)
      : trainer_(trainer),
        impl_(*trainer.impl_),
        strategy_(impl_.compiled("fit")),
        options_(options),
        place_(impl_.place()),
        group_(impl_.has_ranks() ? impl_.group() : nullptr),
        first_step_(trainer.step_) {
    check_together(impl_.ranks(), [&] { take_sets(given); });
    if (impl_.ranks() != nullptr) check_same_on_all_ranks();
    progress_.emplace(progress_of(options_, steps_, trainer.is_first_rank()));
  }

  void run() {
    trainer_.stops_ = false;
    tell([&](Callback& callback) { callback.on_train_begin(trainer_); });
    agree_to_stop();
    for (std::int64_t epoch = options_.initial_epoch; epoch < options_.epochs && !trainer_.stops_ && !has_made_all_steps(); ++epoch) {
      tell([&](Callback& callback) { callback.on_epoch_begin(trainer_, epoch); });
      const Logs logs = logs_of(epoch);
      trainer_.history_.add(logs);
      if (was_whole_) trainer_.epoch_ = epoch + 1;
      progress_->message(fmt::format("epoch {}/{}: {}", epoch + 1, options_.epochs, text_of(logs)));
      tell([&](Callback& callback) { callback.on_epoch_end(trainer_, epoch, logs); });
      agree_to_stop();
    }
    tell([&](Callback& callback) { callback.on_train_end(trainer_); });
  }

 private:
  void take_sets(const data::Pipeline& given) {
    check_epochs(options_);
    training_ = impl_.batched("fit", given, options_.batch_size, /*wants_targets=*/true);
    if (given.batch_size() == 0 && !given.is_shuffled() && options_.shuffle) training_ = training_->shuffle(0, options_.seed);
    if (options_.validation) validation_ = impl_.batched("fit", *options_.validation, 0, /*wants_targets=*/true);
    steps_ = steps_of(*training_, options_, impl_.parts(), place_.rank);
  }

  void check_same_on_all_ranks() const {
    check_same_lines(*group_,
                     {sizes_text("", *training_), fmt::format("{} steps an epoch", steps_),
                      validation_ ? sizes_text("for validation ", *validation_) : "no validation",
                      fmt::format("epochs {} to {}, at most {} steps", options_.initial_epoch, options_.epochs, options_.max_steps)},
                     "Trainer::fit", "gave different sets or options");
  }

  Logs logs_of(std::int64_t epoch) {
    const std::vector<Metric*> metrics = impl_.training_metrics();
    for (Metric* const metric : metrics) metric->reset();
    Logs logs = {{"loss", train_epoch(epoch)}};
    if (options_.training_metrics) {
      reduce_metrics(metrics, group_.get());
      for (std::size_t i = 0; i < metrics.size(); ++i) logs.emplace_back(impl_.options.metrics[i].name(), impl_.metrics[i].value());
    }
    if (validation_)
      for (const auto& [name, value] : impl_.evaluate(*validation_)) logs.emplace_back("val_" + name, value);
    logs.emplace_back("lr", static_cast<double>(strategy_.optimizer().lr()));
    return logs;
  }

  // Returns the mean of the losses of the epoch's steps, over all ranks.
  double train_epoch(std::int64_t epoch) {
    const TrainingMode mode(impl_.counts, options_.training_metrics && !impl_.metrics.empty());
    if (!trainer_.model().is_training()) trainer_.model().train();  // modules in eval mode within one that trains were put there on purpose
    const std::int64_t allowed = options_.max_steps > 0 ? options_.max_steps - steps_made() : steps_;
    if (DistributedDataParallel* const wrapper = strategy_.wrapper()) wrapper->begin_epoch(std::min(steps_, allowed));
    double sum = 0;
    std::int64_t done = 0;
    auto in_order = training_->epoch(epoch, {.place = place_, .device = impl_.batch_device(), .remainder = data::Remainder::kDrop});
    for (auto& [inputs, targets] : in_order) {
      const float loss = train_step(inputs, targets);
      sum += static_cast<double>(loss);
      progress_->step(epoch * steps_ + ++done, loss, training_->batch_size());
      const Logs logs = {{"loss", loss}};
      tell([&](Callback& callback) { callback.on_step_end(trainer_, trainer_.step_, logs); });
      if (done == steps_ || has_made_all_steps()) break;
    }
    was_whole_ = done == steps_;
    return across_ranks(sum / static_cast<double>(done), ReduceOp::kAvg);
  }

  float train_step(const Tensor& inputs, const Tensor& targets) {
    tell([&](Callback& callback) { callback.on_step_begin(trainer_, trainer_.step_); });
    const float loss = strategy_.step(inputs, targets);
    ++trainer_.step_;
    check_finite(Tensor::full({1}, loss), trainer_.step_, {.group = group_});
    return loss;
  }

  template <typename Call>
  void tell(const Call& call) const {
    for (const auto& callback : options_.callbacks) call(*callback);
  }
  double across_ranks(double value, ReduceOp op) const {
    if (group_ && group_->world_size() > 1) group_->all_reduce(std::span(&value, 1), op);
    return value;
  }
  void agree_to_stop() { trainer_.stops_ = across_ranks(trainer_.stops_ ? 1 : 0, ReduceOp::kMax) != 0; }
  std::int64_t steps_made() const { return trainer_.step_ - first_step_; }
  bool has_made_all_steps() const { return options_.max_steps > 0 && steps_made() >= options_.max_steps; }

  Trainer& trainer_;
  Impl& impl_;
  Strategy& strategy_;
  const FitOptions& options_;
  const Place place_;
  const std::shared_ptr<ProcessGroup> group_;  // null: the strategy has no ranks
  const std::int64_t first_step_;
  std::optional<data::Pipeline> training_, validation_;
  std::int64_t steps_ = 0;  // of an epoch
  std::optional<Progress> progress_;
  bool was_whole_ = true;  // the last epoch: max_steps may end one within
};

const History& Trainer::fit(const data::Pipeline& training, const FitOptions& options) {
  Impl::Fit fit(*this, training, options);
  impl_->guarded([&] { fit.run(); });
  return history_;
}

}  // namespace lockstep::train
