// Distributed evaluation in one call.
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
namespace lockstep::train {

// Collective. Copies rank 0's buffers of the model (running statistics of batch normalisation, which each rank computes
// from its own samples) to all ranks, so that they compute like a checkpoint's model, which has rank 0's buffers. All
// ranks keep them, as after loading that checkpoint. evaluate() and predict() of a module call it first; call it
// yourself before a custom loop and before evaluate() of a function. Skips buffers that a DistributedDataParallel was
// told to ignore. Null group: the thread's default group; without one: a job of one rank. Throws MismatchError if the
// ranks have different sets of buffers.
void sync_buffers(const nn::Module& model, const std::shared_ptr<ProcessGroup>& group = nullptr);

struct EvaluateOptions {
  std::int64_t batch_size = 250;                  // per rank
  Device* device = nullptr;                       // where batches are placed; null: the CPU
  std::shared_ptr<ProcessGroup> group = nullptr;  // null: the thread's default group; without one: a job of one rank
  data::Collate collate = {};                     // makes batches; empty: data::stack()
};

// Collective. Divides the samples of `dataset` among the ranks, each exactly once, calls `forward` for each batch
// without recording a tape, and accumulates the metrics, which it resets first. Ranks do not wait for each other before
// the end; some may have one batch less, or none. Returns the number of samples over all ranks. Samples must have two
// tensors, inputs and targets; evaluate a model with more in a loop over a DistributedSampler with Remainder::kExact,
// Metric::update() and reduce_metrics(). Metrics receive float32 outputs on the CPU. Throws InvalidArgument for a
// batch_size below 1, a null metric, or another number of tensors. An exception on any rank (options, `forward`, data
// set or metric) ends the group: the other ranks throw PeerLost with the same text. The same holds for predict(). When
// `forward` is a function, the ranks' buffers must be equal: see sync_buffers().
std::int64_t evaluate(const std::function<Tensor(const Tensor& inputs)>& forward, const data::Dataset& dataset,
                      std::initializer_list<Metric*> metrics, const EvaluateOptions& options = {});

// The same for a module, after sync_buffers() and in evaluation mode: train(false), and at the end, also after an
// exception, each of its modules has its former mode.
std::int64_t evaluate(nn::Module& model, const data::Dataset& dataset, std::initializer_list<Metric*> metrics,
                      const EvaluateOptions& options = {});
std::int64_t evaluate(nn::Module& model, const data::Dataset& dataset, std::span<Metric* const> metrics,
                      const EvaluateOptions& options = {});

// Collective. Calls sync_buffers() and returns the model's outputs (N, ...), float32, for all samples in order, on the
// CPU of every rank. Each is computed once, in evaluation mode and without a tape. The input is the first tensor of a
// sample; others are ignored. Throws InvalidArgument for a batch_size below 1, an empty set, outputs without one row
// per sample, or outputs of different shapes in different batches.
Tensor predict(nn::Module& model, const data::Dataset& dataset, const EvaluateOptions& options = {});

}  // namespace lockstep::train
#pragma GCC visibility pop
