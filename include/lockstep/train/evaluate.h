// Distributed evaluation as one call.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>

#include "lockstep/comm/process_group.h"
#include "lockstep/data/collate.h"
#include "lockstep/data/dataset.h"
#include "lockstep/nn/module.h"
#include "lockstep/train/metrics.h"

#pragma GCC visibility push(default)
namespace lockstep {

// Collective: rank 0's buffers of the model (running statistics of batch normalisation, which each rank takes of its
// own samples) to all ranks, so that they compute as the model of a checkpoint does, which has rank 0's. All ranks go
// on with them, as they would after loading that checkpoint. evaluate() and predict() of a module do so first; a loop
// of your own, and evaluate() of a function, call it before. Not of buffers that a DistributedDataParallel was told to
// ignore: they stay each rank's own. Null group: the thread's default group; none: a job of one. Ranks with different
// buffers: MismatchError.
void sync_buffers(const nn::Module& model, const std::shared_ptr<ProcessGroup>& group = nullptr);

struct EvaluateOptions {
  std::int64_t batch_size = 250;                  // of each rank
  Device* device = nullptr;                       // where batches go; null: the CPU
  std::shared_ptr<ProcessGroup> group = nullptr;  // null: the thread's default group; none: a job of one
  data::Collate collate = {};                     // makes batches; empty: data::stack()
};

// Collective: shares the samples of `dataset` out to the ranks, each exactly once, gives `forward` batch after batch
// without recording a tape, and adds up the metrics, which it resets first. Ranks do not wait for each other before the
// end: some may have a batch less, or none. Returns the number of samples, of all ranks. Samples have two tensors,
// inputs and targets: a model of several is evaluated by a loop over a DistributedSampler of Remainder::kExact,
// Metric::update() and reduce_metrics(). A metric sees float32 outputs on the CPU. InvalidArgument: batch_size below 1,
// a metric that is null, other numbers of tensors. An exception on any rank, for wrong options too, by `forward`, the
// data set or a metric, ends the group: the others throw PeerLost with the same text. So in predict(). Of a function
// the ranks must have equal buffers: see sync_buffers().
std::int64_t evaluate(const std::function<Tensor(const Tensor& inputs)>& forward, const data::Dataset& dataset,
                      std::initializer_list<Metric*> metrics, const EvaluateOptions& options = {});

// The same of a module, after sync_buffers(), and in evaluation mode meanwhile: train(false), and at the end each of
// its modules as it was, also where an exception ends it.
std::int64_t evaluate(nn::Module& model, const data::Dataset& dataset, std::initializer_list<Metric*> metrics,
                      const EvaluateOptions& options = {});
std::int64_t evaluate(nn::Module& model, const data::Dataset& dataset, std::span<Metric* const> metrics,
                      const EvaluateOptions& options = {});

// Collective: after sync_buffers(), the model's outputs (N, ...), float32, for all samples in their order, on the CPU
// of every rank; each is computed once, in evaluation mode and without a tape. The first tensor of a sample is the
// input, others are not looked at. InvalidArgument: batch_size below 1, an empty set, outputs that are not a row a
// sample, or of another shape in another batch.
Tensor predict(nn::Module& model, const data::Dataset& dataset, const EvaluateOptions& options = {});

}  // namespace lockstep
#pragma GCC visibility pop
