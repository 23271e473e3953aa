#include <algorithm>
#include <chrono>
#include <utility>

#include "lockstep/comm/agreement.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/core/log.h"
#include "lockstep/ddp/ddp.h"
#include "lockstep/train/check_finite.h"
#include "lockstep/train/progress.h"
#include "lockstep/train/save_options.h"
#include "src/ddp/checks/replicas.h"
#include "src/train/trainer/trainer_impl.h"

namespace lockstep::train {

namespace {

void check_epochs(const FitOptions& options) {
  if (options.initial_epoch < 0 || options.epochs < 1 || options.epochs < options.initial_epoch)
    throw InvalidArgument(
        "Trainer::fit: got epochs {} and initial_epoch {}: epochs includes those before initial_epoch, and must be at "
        "least 1",
        options.epochs, options.initial_epoch);
  if (options.log_every < 1 || options.max_steps < 0)
    throw InvalidArgument("Trainer::fit: log_every {} must be positive, max_steps {} not negative", options.log_every,
                          options.max_steps);
  for (const auto& callback : options.callbacks)
    if (!callback) throw InvalidArgument("Trainer::fit: one of the callbacks is null");
}

// Steps of an epoch, and of a pass over the set (`whole`).
std::int64_t steps_of(const data::Pipeline& training, const FitOptions& options, std::int64_t whole, std::int64_t parts,
                      int rank) {
  const std::int64_t batch = training.batch_size();
  if (batch % parts != 0)
    throw InvalidArgument(
        "Trainer::fit: rank {}: a batch of {} samples cannot be split evenly among {} devices: choose a multiple of {}",
        rank, batch, parts, parts);
  if (whole == 0)
    throw InvalidArgument(
        "Trainer::fit: rank {}: a batch of {} samples is larger than the set, which has {}, and drop_remainder leaves "
        "out the rest",
        rank, batch, training.size());
  if (options.steps_per_epoch < 0 || options.steps_per_epoch > whole)
    throw InvalidArgument("Trainer::fit: rank {}: steps_per_epoch {}: an epoch has {} steps of {} samples", rank,
                          options.steps_per_epoch, whole, batch);
  return options.steps_per_epoch > 0 ? options.steps_per_epoch : whole;
}

// While it is alive, the loss updates the metrics.
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
          .samples = "samples",
          .keras = true};
}

// The end of an epoch as Keras prints it with verbose=2. The time is that of the last `timed` steps.
std::string epoch_text(std::int64_t steps, std::int64_t of, double seconds, std::int64_t timed, const Logs& logs) {
  const double step_ms = 1000 * seconds / static_cast<double>(std::max<std::int64_t>(timed, 1));
  return fmt::format("{}/{} - {:.0f}s - {:.0f}ms/step - {}", steps, of, seconds, step_ms, keras_text_of(logs));
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
    on_all_ranks(impl_.ranks(), [&] { take_sets(given); });
    if (impl_.ranks() != nullptr) check_same_sets();
    progress_.emplace(progress_of(options_, steps_, trainer.is_first_rank()));
  }

  void run() {
    // A fit without epochs changes nothing for a later one, which continues in the epoch that was loaded.
    if (options_.initial_epoch >= options_.epochs && impl_.states_are_loaded && impl_.position) return;
    Callbacks callbacks(impl_, options_.callbacks, [this] { return position(); });
    const std::int64_t epoch_before = trainer_.epoch_;
    try {
      begin();
      callbacks.have_begun();
      train();
    } catch (...) {
      if (!callbacks.begun()) trainer_.epoch_ = epoch_before;
      keep_position_after_error();
      throw;
    }
    wait_for_saves(impl_.group());
  }

 private:
  void train() {
    for (std::int64_t epoch = options_.initial_epoch;
         epoch < options_.epochs && !trainer_.stops_ && !has_made_all_steps(); ++epoch) {
      tell([&](Callback& callback) { callback.on_epoch_begin(trainer_, epoch); });
      if (std::exchange(stops_after_epoch_, false)) trainer_.stops_ = true;
      progress_->message(fmt::format("Epoch {}/{}", epoch + 1, options_.epochs));
      const auto begin = std::chrono::steady_clock::now();
      const Logs logs = logs_of(epoch);
      if (trainer_.is_preempted_) {
        impl_.states_are_loaded = true;  // another fit() continues, as after load()
        return;
      }
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
      trainer_.history_.add(epoch, logs);
      if (was_whole_) {
        trainer_.epoch_ = epoch + 1;
        impl_.position.reset();
      }
      progress_->message(epoch_text(made_.steps, steps_, seconds.count(), timed_steps_, logs));
      tell([&](Callback& callback) { callback.on_epoch_end(trainer_, epoch, logs); });
      tell([&](Callback& callback) { callback.on_checkpoint(trainer_, epoch, logs); });
      if (trainer_.is_preempted_) return;
      agree_to_stop();
    }
    tell([&](Callback& callback) { callback.on_train_end(trainer_); });
  }

  // While it is alive, save() saves the state of these callbacks and the position that `position` returns; afterwards
  // the callbacks' last state, also after an exception. If they have not begun, loaded states stay.
  class Callbacks {
   public:
    Callbacks(Impl& impl, const std::vector<std::shared_ptr<Callback>>& callbacks,
              std::function<std::optional<EpochPosition>()> position)
        : impl_(impl) {
      impl_.callbacks = &callbacks;
      impl_.position_now = std::move(position);
    }
    ~Callbacks() {
      const auto* const callbacks = std::exchange(impl_.callbacks, nullptr);
      impl_.position_now = {};
      if (!begun_) return;
      impl_.states.clear();
      try {
        impl_.states = states_of(*callbacks);
      } catch (const std::exception& error) {
        log::warn("Trainer::fit: the state of its callbacks is missing in later checkpoints: {}", error.what());
      }
    }
    Callbacks(const Callbacks&) = delete;
    Callbacks& operator=(const Callbacks&) = delete;
    void have_begun() { begun_ = true; }
    bool begun() const { return begun_; }

   private:
    Impl& impl_;
    bool begun_ = false;
  };

  void begin() {
    trainer_.stops_ = impl_.has_failed_step = false;
    const bool goes_on = std::exchange(trainer_.epoch_, options_.initial_epoch) == options_.initial_epoch;
    const bool has_loaded = impl_.states_are_loaded && (!impl_.states.empty() || impl_.position.has_value());
    if (continues()) {
      made_ = sums_of(*impl_.position, steps_, place_);
      continued_counts_ = impl_.position->counts;
      stops_after_epoch_ = impl_.position->stops;
    }
    tell([&](Callback& callback) { callback.on_train_begin(trainer_); });
    if (has_loaded && goes_on)
      restore_states(trainer_, options_.callbacks, impl_.states);
    else if (has_loaded && trainer_.is_first_rank())
      log::warn(
          "Trainer::fit: begins with epoch {}, but the loaded checkpoint is at another one, so callbacks, and an epoch "
          "that was not complete, start anew; to continue, set .initial_epoch = trainer.epoch()",
          options_.initial_epoch);
    impl_.states_are_loaded = false;
    agree_to_stop();
  }

  void take_sets(const data::Pipeline& given) {
    check_epochs(options_);
    training_ = impl_.batched("fit", given, options_.batch_size, /*wants_targets=*/true,
                              /*may_be_endless=*/options_.steps_per_epoch > 0);
    if (given.batch_size() == 0 && !given.is_shuffled() && options_.shuffle)
      training_ = training_->shuffle(0, options_.seed);
    if (options_.validation) validation_ = impl_.batched("fit", *options_.validation, 0, /*wants_targets=*/true);
    const std::int64_t samples = training_->size(), batch = training_->batch_size();
    drops_ = options_.drop_remainder || training_->drops_remainder();
    batches_ = drops_ ? samples / batch : (samples + batch - 1) / batch;
    steps_ = steps_of(*training_, options_, batches_, impl_.parts(), place_.rank);
    for (const auto& callback : options_.callbacks) callback->check(trainer_);
    if (continues() && impl_.position->set != set_text())
      throw InvalidArgument(
          "Trainer::fit: the loaded checkpoint was saved in epoch {} after {} steps of: {}; this fit has: {}. Give the "
          "same set and options to continue the epoch, or load a checkpoint of an epoch's end",
          impl_.position->epoch, impl_.position->steps, impl_.position->set, set_text());
    if (continues()) check_counts(counted_metrics(), impl_.position->counts);
  }

  // A set with another text has other samples in its steps. (An order of the program's own data set is unknown.)
  std::string set_text() const {
    return fmt::format("{}, {} steps per epoch{}", sizes_text("", *training_), steps_,
                       drops_ ? ", full batches only" : "");
  }

  // Whether this fit begins in the middle of an epoch, where a loaded checkpoint was saved.
  bool continues() const {
    return impl_.states_are_loaded && impl_.position && impl_.position->epoch == options_.initial_epoch &&
           options_.initial_epoch < options_.epochs;
  }

  // Collective. nullopt between two epochs. Between the last step of an epoch and its end: as the last step left it.
  std::optional<EpochPosition> position() const {
    if (!is_in_epoch_) return impl_.position;
    return position_of(made_, counted_metrics(), {set_text(), trainer_.stops_}, group_.get());
  }
  // For a save() after an exception. The error of one of several ranks ends their group, so that they save no more.
  void keep_position_after_error() {
    if (impl_.ranks() != nullptr) return;
    impl_.has_failed_step = is_in_step_;
    if (is_in_step_)
      impl_.position.reset();
    else
      impl_.position = position();
  }
  std::vector<Metric*> counted_metrics() const {
    return options_.training_metrics ? impl_.training_metrics() : std::vector<Metric*>();
  }

  void check_same_sets() const {
    check_same_on_all_ranks(
        *group_, "Trainer::fit",
        {sizes_text("", *training_), fmt::format("{} steps per epoch{}", steps_, drops_ ? ", full batches only" : ""),
         validation_ ? sizes_text("for validation ", *validation_) : "no validation",
         fmt::format("epochs {} to {}, at most {} steps", options_.initial_epoch, options_.epochs, options_.max_steps)},
        "gave different sets or options");
  }

  Logs logs_of(std::int64_t epoch) {
    const std::vector<Metric*> metrics = counted_metrics();
    for (Metric* const metric : metrics) metric->reset();
    if (continued_counts_) set_counts(metrics, *std::exchange(continued_counts_, std::nullopt), place_);
    Logs logs = {{"loss", train_epoch(epoch)}};
    if (trainer_.is_preempted_) return {};
    reduce_metrics(metrics, group_.get());
    for (std::size_t i = 0; i < metrics.size(); ++i)
      logs.emplace_back(impl_.options.metrics[i].name(), impl_.metrics[i].value());
    if (validation_)
      for (const auto& [name, value] : impl_.evaluate(*validation_)) logs.emplace_back("val_" + name, value);
    logs.emplace_back("lr", static_cast<double>(strategy_.lr()));
    return logs;
  }

  // Returns the mean loss of the epoch's samples, over all ranks. After preempt(): any number.
  double train_epoch(std::int64_t epoch) {
    const TrainingMode mode(impl_.counts, options_.training_metrics && !impl_.metrics.empty());
    if (!trainer_.model().is_training())
      trainer_.model().train();  // modules in eval mode inside a model in training mode were set so on purpose
    const std::int64_t allowed = options_.max_steps > 0 ? options_.max_steps - steps_made() : steps_;
    if (made_.epoch != epoch) made_ = {.epoch = epoch, .first = epoch * steps_};
    const std::int64_t before = made_.steps;
    if (DistributedDataParallel* const wrapper = strategy_.wrapper())
      wrapper->begin_epoch(std::min(steps_ - before, allowed));
    is_in_epoch_ = true;
    while (made_.steps < steps_ && !is_at_end()) train_rest_of_pass(made_);
    was_whole_ = made_.steps == steps_ && !trainer_.is_preempted_;
    impl_.position.reset();
    if (!was_whole_ || impl_.ranks() == nullptr) impl_.position = position();
    is_in_epoch_ = false;
    timed_steps_ = made_.steps - before;
    return trainer_.is_preempted_ ? 0 : across_ranks(made_.losses / static_cast<double>(made_.samples), ReduceOp::kAvg);
  }

  // Trains until the epoch or the current pass over the set ends. An epoch with fewer steps than the set continues
  // where the previous one ended.
  void train_rest_of_pass(EpochSums& made) {
    const std::int64_t pass = (made.first + made.steps) / batches_;
    std::int64_t next = (made.first + made.steps) % batches_;
    auto in_order = training_->epoch(pass, {.place = place_,
                                            .device = impl_.batch_device(),
                                            .remainder = drops_ ? data::Remainder::kDrop : data::Remainder::kPad,
                                            .first_batch = next});
    for (auto& [inputs, targets] : in_order) {
      const std::int64_t begin = next++ * training_->batch_size(),
                         samples = std::min(training_->batch_size(), training_->size() - begin);
      const Share share = share_of(samples, inputs.shape()[0]);
      const float loss = train_step(inputs, targets, share);
      made.losses += static_cast<double>(loss) * share.weight * static_cast<double>(samples);
      made.samples += samples;
      progress_->step(made.first + ++made.steps, loss, samples);
      is_in_step_ = false;
      trainer_.is_last_step_ = made.steps == steps_;
      const Logs logs = {{"loss", loss}};
      tell([&](Callback& callback) { callback.on_step_end(trainer_, trainer_.step_, logs); });
      tell([&](Callback& callback) { callback.on_step_checkpoint(trainer_, trainer_.step_); });
      if (made.steps == steps_ || is_at_end()) break;
    }
  }

  // This process's part of a step's samples.
  struct Share {
    std::int64_t samples;
    float weight;  // see Strategy::weighted_step()
  };
  // The sampler gives rank r the samples r, r + n, r + 2n, ... of a step's. Where the ranks do not divide them, the
  // last row of some ranks repeats a sample of another one.
  Share share_of(std::int64_t samples, std::int64_t rows) const {
    const std::int64_t ranks = place_.world_size, own = (samples - place_.rank + ranks - 1) / ranks;
    if (samples % ranks == 0) return {rows, 1};
    return {own, static_cast<float>(static_cast<double>(own * ranks) / static_cast<double>(samples))};
  }

  float train_step(const Tensor& inputs, const Tensor& targets, const Share& share) {
    tell([&](Callback& callback) { callback.on_step_begin(trainer_, trainer_.step_); });
    is_in_step_ = true;
    float loss = 0;
    if (share.samples == inputs.shape()[0]) {
      loss = strategy_.weighted_step(inputs, targets, share.weight);
    } else if (share.samples > 0) {
      loss = strategy_.weighted_step(view_of_rows(inputs, {0, share.samples}),
                                     view_of_rows(targets, {0, share.samples}), share.weight);
    } else {  // takes part with a sample of another rank, whose gradients count nothing
      const bool counted = std::exchange(impl_.counts, false);
      loss = strategy_.weighted_step(inputs, targets, 0);
      impl_.counts = counted;
    }
    ++trainer_.step_;
    check_finite(Tensor::full({1}, loss, cpu_device()), trainer_.step_, {.group = group_});
    return loss;
  }

  template <typename Call> void tell(const Call& call) const {
    for (const auto& callback : options_.callbacks) call(*callback);
  }
  double across_ranks(double value, ReduceOp op) const {
    if (group_ && group_->world_size() > 1) group_->all_reduce(std::span(&value, 1), op);
    return value;
  }
  void agree_to_stop() { trainer_.stops_ = across_ranks(trainer_.stops_ ? 1 : 0, ReduceOp::kMax) != 0; }
  std::int64_t steps_made() const { return trainer_.step_ - first_step_; }
  bool has_made_all_steps() const { return options_.max_steps > 0 && steps_made() >= options_.max_steps; }
  bool is_at_end() const { return has_made_all_steps() || trainer_.is_preempted_; }

  Trainer& trainer_;
  Impl& impl_;
  Strategy& strategy_;
  const FitOptions& options_;
  const Place place_;
  const std::shared_ptr<ProcessGroup> group_;  // null: the strategy has no ranks
  const std::int64_t first_step_;
  std::optional<data::Pipeline> training_, validation_;
  bool drops_ = false;                                      // whether a pass leaves out the last, smaller batch
  std::int64_t steps_ = 0, batches_ = 0, timed_steps_ = 0;  // per epoch, per pass over the set, of the last epoch here
  std::optional<Progress> progress_;
  EpochSums made_;                                             // of the epoch in progress, or of the last one
  std::optional<std::vector<std::int64_t>> continued_counts_;  // from a checkpoint, until the epoch begins
  bool stops_after_epoch_ = false;                             // the same: stop() had been called
  bool is_in_step_ = false;                                    // whose samples may count in part
  bool is_in_epoch_ = false, was_whole_ = true;  // was_whole_: the last epoch; max_steps may end one early
};

const History& Trainer::fit(const data::Pipeline& training, const FitOptions& options) {
  impl_->compiled("fit");
  is_preempted_ = false;
  impl_->served(*this, [&] {
    Impl::Fit fit(*this, training, options);
    impl_->guarded([&] { fit.run(); });
    return std::string();
  });
  return history_;
}

}  // namespace lockstep::train
