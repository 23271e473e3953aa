#include "src/train/strategies/one_process/deploy_parts.h"

#include "lockstep/core/error.h"

namespace lockstep::train {

void check_has_batches(const DeployOptions& options) {
  if (static_cast<bool>(options.next_batch) == (options.reader != nullptr))
    throw InvalidArgument(
        "deploy: DeployOptions needs .next_batch or .reader, one of them: a step takes its samples there");
}

std::optional<data::Batch> next_batch_of(const DeployOptions& options) {
  return options.reader != nullptr ? options.reader->next() : options.next_batch();
}

void let_seek(TrainOp& train_op, const DeployOptions& options) {
  if (options.reader != nullptr) train_op.seek = [reader = options.reader](std::int64_t steps) { reader->seek(steps); };
}

Tensor penalty_of(const RegularizationFunction& regularization, nn::Module& clone) {
  Tensor penalty = regularization(clone);
  if (!penalty.defined() || penalty.count() != 1)
    throw InvalidArgument("deploy: .regularization returned {}, a scalar is needed",
                          penalty.defined() ? "a tensor of shape " + penalty.shape().text() : "no tensor");
  return penalty;
}

void add_loss_summaries(SummaryWriter& writer, const CloneLosses& losses, std::int64_t step) {
  writer.add_scalar("total_loss", losses.total, step);
  for (const NamedLoss& each : losses.clones) writer.add_scalar(each.name, each.value, step);
  if (losses.regularization) writer.add_scalar("regularization_loss", *losses.regularization, step);
}

}  // namespace lockstep::train
