#include "lockstep/train/train_loop.h"

#include <chrono>

#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/train/check_finite.h"
#include "lockstep/train/checkpoint.h"

namespace lockstep::train {

namespace {

CheckpointParts parts_of(const TrainOp& train_op, std::int64_t step) {
  CheckpointParts parts{.model = *train_op.model};
  if (train_op.optimizer != nullptr) parts.optimizer = *train_op.optimizer;
  parts.step = step;
  return parts;
}

void check(const TrainOp& train_op, const TrainLoopOptions& options) {
  if (!train_op.run) throw InvalidArgument("train: train_op has no .run");
  const auto check_number = [](const char* name, std::int64_t value, std::int64_t least) {
    if (value < least) throw InvalidArgument("train: {} is {}: it must be at least {}", name, value, least);
  };
  check_number("number_of_steps", options.number_of_steps, 0);
  check_number("log_every_n_steps", options.log_every_n_steps, 1);
  check_number("save_summaries_steps", options.save_summaries_steps, 1);
}

}  // namespace

float train(const TrainOp& train_op, const std::string& log_dir, const SummaryOp& summary_op,
            const TrainLoopOptions& options) {
  check(train_op, options);
  const std::string checkpoints = log_dir + "/checkpoints";
  std::int64_t step = 0;
  if (train_op.model != nullptr) {
    prepare_checkpoint_folder(checkpoints);
    if (const auto state = load_checkpoint(checkpoints, parts_of(train_op, 0))) step = state->step;
    if (step > 0) log::info("train: goes on from step {} of {}", step, checkpoints);
  }
  SummaryWriter writer = summary_op ? SummaryWriter(log_dir, {.purge_step = step + 1}) : SummaryWriter::none();
  const std::int64_t first = step;
  std::int64_t summarized = step;
  float loss = 0;
  auto logged_at = std::chrono::steady_clock::now();
  std::int64_t logged = step;
  while (options.number_of_steps == 0 || step < options.number_of_steps) {
    const std::optional<float> result = train_op.run();
    if (!result) break;
    loss = check_finite(Tensor::full({1}, *result), step + 1, {.name = "total_loss"});
    ++step;
    if (step % options.log_every_n_steps == 0) {
      const auto now = std::chrono::steady_clock::now();
      log::info("global step {}: loss = {:.4f} ({:.3f} s/step)", step, loss,
                std::chrono::duration<double>(now - logged_at).count() / static_cast<double>(step - logged));
      logged_at = now, logged = step;
    }
    if (summary_op && step % options.save_summaries_steps == 0) summary_op(writer, summarized = step);
  }
  if (summary_op && step != summarized) summary_op(writer, step);
  writer.close();
  if (train_op.model != nullptr && step != first) save_checkpoint(checkpoints, parts_of(train_op, step));
  return loss;
}

}  // namespace lockstep::train
