#include "lockstep/train/train_loop.h"

#include <chrono>
#include <limits>

#include "lockstep/comm/agreement.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/train/check_finite.h"
#include "lockstep/train/checkpoint.h"
#include "src/core/base/message_text.h"

namespace lockstep::train {

namespace {

using Clock = std::chrono::steady_clock;

void check(const TrainOp& train_op, const TrainLoopOptions& options) {
  if (!train_op.run && !train_op.serve) throw InvalidArgument("train: train_op has no .run");
  const auto check_number = [](const char* name, std::int64_t value, std::int64_t least) {
    if (value < least) throw InvalidArgument("train: {} is {}: it must be at least {}", name, value, least);
  };
  check_number("number_of_steps", options.number_of_steps, 0);
  check_number("log_every_n_steps", options.log_every_n_steps, 1);
  check_number("save_summaries_steps", options.save_summaries_steps, 0);
  check_number("save_summaries_secs", options.save_summaries_secs.count(), 0);
  check_number("save_interval_steps", options.save_interval_steps, 0);
  check_number("save_interval_secs", options.save_interval_secs.count(), 0);
  check_number("max_to_keep", options.max_to_keep, 1);
}

// The options by which the processes decide when they save together, and when they end.
std::vector<std::string> shared_lines(const TrainOp& train_op, const TrainLoopOptions& options) {
  return {fmt::format("number_of_steps {}", options.number_of_steps),
          fmt::format("save_interval_steps {}", options.save_interval_steps),
          fmt::format("save_interval_secs {}", options.save_interval_secs.count()),
          fmt::format("max_to_keep {}", options.max_to_keep),
          fmt::format("a train_op {} .model", train_op.model != nullptr ? "with" : "without")};
}

// Whether something is due that happens every so many steps and every so many seconds. 0: not by this.
class Interval {
 public:
  Interval(std::int64_t steps, std::chrono::seconds seconds, std::int64_t first)
      : steps_(steps), seconds_(seconds), last_(first) {}

  bool is_due(std::int64_t step) const {
    return step != last_ &&
           ((steps_ > 0 && step % steps_ == 0) || (seconds_.count() > 0 && Clock::now() - last_time_ >= seconds_));
  }
  void done(std::int64_t step) { last_ = step, last_time_ = Clock::now(); }
  std::int64_t last() const { return last_; }

 private:
  const std::int64_t steps_;
  const std::chrono::seconds seconds_;
  std::int64_t last_;
  Clock::time_point last_time_ = Clock::now();
};

std::shared_ptr<ProcessGroup> group_of_loop(const TrainOp& train_op) {
  return train_op.group ? train_op.group : default_process_group();
}

class TrainLoop {
 public:
  TrainLoop(const TrainOp& train_op, const std::string& log_dir, const SummaryOp& summary_op,
            const TrainLoopOptions& options)
      : op_(train_op),
        options_(options),
        group_(group_of_loop(train_op)),
        is_chief_(!group_ || group_->rank() == 0),
        summary_op_(is_chief_ ? summary_op : SummaryOp()),
        checkpoints_(log_dir + "/checkpoints"),
        step_(resume()),
        writer_(open_writer(log_dir)),
        summaries_(options.save_summaries_steps, options.save_summaries_secs, step_),
        saves_(options.save_interval_steps, options.save_interval_secs, step_),
        model_state_(saves_after_errors() ? op_.model->state_dict() : std::vector<NamedTensor>()),
        versions_(versions()),
        logged_(step_) {}

  float run() {
    float loss = std::numeric_limits<float>::quiet_NaN();
    if (has_all_steps()) {
      if (is_chief_)
        log::info("train: nothing to do: {} has step {}, and number_of_steps is {}", checkpoints_, step_,
                  options_.number_of_steps);
      return loss;
    }
    while (!has_all_steps()) {
      const std::optional<float> result = run_step();
      if (!result) break;
      loss = check_finite(Tensor::full({1}, *result, cpu_device()), step_ + 1, {.name = "total_loss", .group = group_});
      ++step_;
      versions_ = versions();
      if (step_ % options_.log_every_n_steps == 0) log_step(loss);
      if (summary_op_ && summaries_.is_due(step_)) write_summary();
      if (agree(saves_.is_due(step_))) save();
    }
    if (summary_op_ && step_ != summaries_.last()) write_summary();
    writer_.close();
    if (step_ != saves_.last()) save();  // all processes have saved at the same steps
    wait_for_saves(group_);
    return loss;
  }

 private:
  bool has_all_steps() const { return options_.number_of_steps > 0 && step_ >= options_.number_of_steps; }
  bool saves() const { return op_.model != nullptr; }
  bool has_peers() const { return group_ && group_->world_size() > 1; }
  bool saves_after_errors() const { return saves() && !has_peers(); }  // the peers would wait in their step

  // The chief's clock decides for all.
  bool agree(bool is_due) const {
    if (!has_peers() || options_.save_interval_secs.count() == 0) return is_due;
    std::uint8_t chiefs = is_due ? 1 : 0;
    group_->broadcast(&chiefs, 1, DType::kUInt8, 0, {.purpose = {"checkpoint"}});
    return chiefs != 0;
  }

  CheckpointParts parts() const {
    CheckpointParts parts{.model = *op_.model};
    if (op_.optimizer != nullptr) parts.optimizer = *op_.optimizer;
    parts.step = step_;
    parts.group = group_;
    parts.keep = options_.max_to_keep;
    return parts;
  }

  std::int64_t resume() {
    std::int64_t step = 0;
    if (saves()) {
      prepare_checkpoint_folder(checkpoints_, group_);
      if (const auto state = load_checkpoint(checkpoints_, parts())) step = state->step;
      if (step > 0 && is_chief_) log::info("train: goes on from step {} of {}", step, checkpoints_);
    }
    if (op_.seek) on_all_ranks(group_, [&] { op_.seek(step); });
    return step;
  }

  // The chief alone may fail.
  SummaryWriter open_writer(const std::string& log_dir) const {
    return on_all_ranks(group_, [&] {
      return summary_op_ ? SummaryWriter(log_dir, {.group = group_, .purge_step = step_ + 1}) : SummaryWriter::none();
    });
  }

  std::optional<float> run_step() {
    try {
      return op_.run();
    } catch (const std::exception& error) {
      save_after_error(error);
      throw;
    }
  }

  // The versions of all that a checkpoint saves: they change when a step does.
  std::vector<std::uint64_t> versions() const {
    std::vector<std::uint64_t> all;
    if (!saves_after_errors()) return all;
    for (const NamedTensor& each : model_state_) all.push_back(each.tensor.version());
    if (op_.optimizer != nullptr)
      for (const NamedTensor& each : op_.optimizer->state()) all.push_back(each.tensor.version());
    return all;
  }

  void save_after_error(const std::exception& error) {
    if (!saves_after_errors() || step_ == saves_.last()) return;
    if (versions() != versions_) {
      log::warn("train: step {} failed after it had changed the model, so that step {} is not saved: {}", step_ + 1,
                step_, error.what());
      return;
    }
    try {
      save({.on_error = OnSaveError::kStop, .keep_for = options_.save.keep_for});
      log::info("train: step {} failed; step {} is saved in {}: {}", step_ + 1, step_, checkpoints_, error.what());
    } catch (const std::exception& failure) {
      log::error("train: step {} failed, and step {} could not be saved: {}", step_ + 1, step_, failure.what());
    }
  }

  void log_step(float loss) {
    const auto now = Clock::now();
    if (is_chief_)
      log::info("global step {}: loss = {:.4f} ({:.3f} s/step)", step_, loss,
                std::chrono::duration<double>(now - logged_at_).count() / static_cast<double>(step_ - logged_));
    logged_at_ = now, logged_ = step_;
  }
  void write_summary() {
    summary_op_(writer_, step_);
    summaries_.done(step_);
  }
  void save() { save(options_.save); }
  void save(const SaveOptions& options) {
    if (saves()) {
      writer_.flush();  // so that TensorBoard has every step that the checkpoint has
      if (op_.before_save) op_.before_save();
      save_checkpoint(checkpoints_, parts(), options);
    }
    saves_.done(step_);
  }

  const TrainOp& op_;
  const TrainLoopOptions& options_;
  const std::shared_ptr<ProcessGroup> group_;  // null: a job of one rank
  const bool is_chief_;
  const SummaryOp summary_op_;
  const std::string checkpoints_;
  std::int64_t step_;
  SummaryWriter writer_;
  Interval summaries_, saves_;
  const std::vector<NamedTensor> model_state_;  // whose versions show whether a failed step has changed it
  std::vector<std::uint64_t> versions_;         // after the last complete step
  std::int64_t logged_;
  Clock::time_point logged_at_ = Clock::now();
};

}  // namespace

float train(const TrainOp& train_op, const std::string& log_dir, const SummaryOp& summary_op,
            const TrainLoopOptions& options) {
  if (train_op.serve) {
    check(train_op, options);
    train_op.serve();
    return std::numeric_limits<float>::quiet_NaN();
  }
  const std::shared_ptr<ProcessGroup> group = group_of_loop(train_op);
  bool has_begun = false;
  try {
    on_all_ranks(group, [&] { check(train_op, options); });
    check_same_on_all_ranks(group, "train", shared_lines(train_op, options), "have different options");
    TrainLoop loop(train_op, log_dir, summary_op, options);
    has_begun = true;
    return loop.run();
  } catch (...) {
    if (train_op.abort) train_op.abort(exception_text(std::current_exception()));  // servers wait for the workers
    if (has_begun) abort_for(group, std::current_exception());                     // before, all ranks throw
    throw;
  }
}

}  // namespace lockstep::train
