// Members that one strategy has and others do not. Strategy::as<Role>() returns them, or null:
//
//   if (auto* const pipeline = strategy->as<train::PipelineStages>()) print(pipeline->bubble().expected);
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#pragma GCC visibility push(default)
namespace lockstep::train {

// A server of `parameter_server`: this process holds parameters. It calls serve(); its step() throws InvalidArgument.
class ParameterHolder {
 public:
  virtual ~ParameterHolder() = default;

  // Call it once. Blocks until all workers have destroyed their strategies. Throws what the loss of a worker or a
  // disagreement of workers causes.
  virtual void serve() = 0;
  // By worker: its gradients that arrived after their step was complete (.backup_workers).
  virtual std::vector<std::int64_t> dropped_gradients() const = 0;
};

// A worker of `parameter_server`.
class ParameterWorker {
 public:
  virtual ~ParameterWorker() = default;

  // The updates that ps:0 had made when it sent the weights of model(): TensorFlow's global step.
  virtual std::int64_t global_step() const = 0;
  // This worker's gradients that arrived after their step was complete (.backup_workers).
  virtual std::int64_t dropped_gradients() const = 0;
};

// `local_sgd`.
class WeightAverager {
 public:
  virtual ~WeightAverager() = default;

  // Collective: averages the weights now: before an evaluation, before a checkpoint, at the end. The next average comes
  // .average_period steps later. A run that goes on and one that loads the checkpoint have equal bits if the optimizer
  // has no state and the model no buffers: a checkpoint has rank 0's, while each rank has its own. Not in join():
  // InvalidArgument.
  virtual void average_weights() = 0;
};

struct PipelineBubble {
  int stages = 1, micro_batches = 1;
  double expected = 0;  // (stages - 1) / (micro_batches + stages - 1): the share of a step in which a stage waits
  std::vector<double> idle = {};  // by device of this process: the share of the last step in which its stage waited
};

// `model_parallel`: its stages wait for each other.
class PipelineStages {
 public:
  virtual ~PipelineStages() = default;

  virtual PipelineBubble bubble() const = 0;
};

struct NamedLoss {
  std::string name;
  float value = 0;
};

// `towers`, and a worker of `parameter_server`: a total loss for each part of the batch.
class PartLosses {
 public:
  virtual ~PartLosses() = default;

  virtual std::vector<NamedLoss> losses() const = 0;  // "tower_0/loss" or "part_0/loss", ..., of the last step
};

}  // namespace lockstep::train
#pragma GCC visibility pop
