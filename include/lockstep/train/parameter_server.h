// The strategy `parameter_server`: processes of job "ps" hold the parameters and the optimizer's state, those of job
// "worker" compute.
//
//   lockrun --ps 2 --workers 4 ./train
//
//   auto strategy = train::make_strategy("parameter_server", {...});       // collective, on all six
//   if (auto* const server = strategy->as<train::ParameterHolder>()) {     // train/strategy_roles.h
//     server->serve();                                                     // until all workers have destroyed theirs
//     return 0;
//   }
//   data::DistributedSampler sampler(size, strategy->workers()->place());  // from here on: a worker
//   for (...) strategy->step(inputs, targets);                             // model() has the current weights then
//
// The job begins with the weights that worker 0's model() has in its first step, for instance a checkpoint's.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/bootstrap.h"
#include "lockstep/tensor/named_tensor.h"

#pragma GCC visibility push(default)
namespace lockstep::train {

// A process's part in the job.
struct Task {
  enum class Job { kWorker, kServer };
  Job job = Job::kWorker;
  int index = 0;  // among the processes of its job

  bool operator==(const Task&) const = default;
};
std::string name_of(const Task& task);  // "worker:3", "ps:0"

// The task by LOCKSTEP_JOB and LOCKSTEP_TASK_INDEX, which `lockrun --ps P --workers W` sets; nullopt if LOCKSTEP_JOB is
// not set. Throws InvalidArgument with the variable's name. Pure.
std::optional<Task> task_of_environment(const EnvironmentLookup& lookup);

// The rule that assigns parameters to servers, in the order of Module::named_parameters().
enum class Sharding {
  kRoundRobin,   // 0, 1, 2, 0, 1, 2, ..., the default of TensorFlow's replica_device_setter
  kGreedyBytes,  // each to the server that holds the fewest bytes so far, the lowest number among equals
};

// The same on all ranks, or all throw MismatchError.
struct ParameterServerOptions {
  // This number of the last ranks are servers; 0: LOCKSTEP_JOB and LOCKSTEP_TASK_INDEX give each process its task.
  int servers = 0;
  // 0: synchronous. All gradients of a step are averaged in the order of the workers, which make the same number of
  // steps. Otherwise asynchronous: each worker's gradients are a separate update, and a worker that has finished
  // more than `staleness` steps more than the slowest waits for it before its next one (stale synchronous parallel: Ho
  // et al., NIPS 2013). Not negative.
  int staleness = 0;
  Sharding sharding = Sharding::kRoundRobin;
};

// The number of each parameter's server. Pure. Throws InvalidArgument if a server would hold no parameter (more servers
// than parameters).
std::vector<int> shard_parameters(const std::vector<NamedTensor>& parameters, int servers, Sharding sharding);

// The same as a text, with a line for each parameter, and the bytes of each server below:
//   parameter      bytes  server
//   hidden.weight  2048   ps:0
std::string describe_shards(const std::vector<NamedTensor>& parameters, int servers, Sharding sharding);

}  // namespace lockstep::train
#pragma GCC visibility pop
