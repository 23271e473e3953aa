// The parts of deploy() that are the same with and without parameter servers: batches, the reader's place, summaries of
// losses.
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/train/deploy.h"

namespace lockstep::train {

// Throws InvalidArgument unless there is one of .next_batch and .reader.
void check_has_batches(const DeployOptions& options);
std::optional<data::Batch> next_batch_of(const DeployOptions& options);
// A resumed run continues with the reader where it was, if there is one.
void let_seek(TrainOp& train_op, const DeployOptions& options);
// Throws InvalidArgument unless the function returns a scalar.
Tensor penalty_of(const RegularizationFunction& regularization, nn::Module& clone);
void add_loss_summaries(SummaryWriter& writer, const CloneLosses& losses, std::int64_t step);

}  // namespace lockstep::train
