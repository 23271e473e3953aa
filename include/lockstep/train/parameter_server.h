// The strategy `parameter_server`: processes of job "ps" hold the parameters and the optimizer's state, those of job
// "worker" compute.
//
//   lockrun --ps 2 --workers 4 ./train
//
//   auto strategy = train::make_strategy("parameter_server", {...});       // collective, on all six
//   if (strategy->is_server()) return strategy->serve(), 0;                // until all workers have destroyed theirs
//   data::DistributedSampler sampler(size, strategy->workers()->place());  // from here on: a worker
//   for (...) strategy->step(inputs, targets);                             // model() has the current weights then
//
// Weights that are put into worker 0's model() before its first step (a checkpoint's) are those that the job begins
// with.
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

// What LOCKSTEP_JOB and LOCKSTEP_TASK_INDEX say, which `lockrun --ps P --workers W` sets; none where LOCKSTEP_JOB is
// not set. Throws InvalidArgument that names the variable. Pure.
std::optional<Task> task_of_environment(const EnvironmentLookup& lookup);

// The rule by which parameters are given to servers, in the order of Module::named_parameters().
enum class Sharding {
  kRoundRobin,   // 0, 1, 2, 0, 1, 2, ..., as TensorFlow's replica_device_setter by default
  kGreedyBytes,  // each to the server that holds the fewest bytes so far, the lowest number among equals
};

// The same on all ranks, or all throw MismatchError.
struct ParameterServerOptions {
  int servers =
      0;  // the last so many ranks are servers; 0: LOCKSTEP_JOB and LOCKSTEP_TASK_INDEX tell each process its task
  // 0: synchronous. All gradients of a step are averaged in the order of the workers, who make as many steps each.
  // Otherwise asynchronous: each worker's gradients are an update of their own, and a worker that has finished more
  // than `staleness` steps more than the slowest waits for it before its next one (stale synchronous parallel: Ho et
  // al., NIPS 2013). Not negative.
  int staleness = 0;
  Sharding sharding = Sharding::kRoundRobin;
};

// By parameter: the number of its server. Pure. Throws InvalidArgument when a server would hold none (more servers than
// parameters).
std::vector<int> shard_parameters(const std::vector<NamedTensor>& parameters, int servers, Sharding sharding);

// The same for people, a line a parameter, and the bytes of each server below:
//   parameter      bytes  server
//   hidden.weight  2048   ps:0
std::string describe_shards(const std::vector<NamedTensor>& parameters, int servers, Sharding sharding);

}  // namespace lockstep::train
#pragma GCC visibility pop
