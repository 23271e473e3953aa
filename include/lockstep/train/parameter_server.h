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
// The job begins with the weights that worker 0's model() has in its first step, and with the state of its optimizer(),
// for instance a checkpoint's.
#pragma once

#include <cstddef>
#include <cstdint>
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
  // Synchronous only. With b of W workers as backup, a step takes the first W - b gradients, in the order of the
  // workers, and drops those that arrive later (Chen et al., "Revisiting Distributed Synchronous SGD", 2016;
  // SyncReplicasOptimizer with replicas_to_aggregate = W - b). ps:0 decides for all servers which ones these are. A
  // worker whose gradients were dropped gets the current weights, and goes on with the current step: it makes fewer
  // steps than the others, so all loop until ParameterWorker::global_step() (train/strategy_roles.h) has the end.
  int backup_workers = 0;
  // A tensor is split by rows (its first dimension) into pieces of at least this many bytes, each on another server, as
  // many as there are servers and rows: TensorFlow's MinSizePartitioner. 0: tensors stay whole. The optimizer must be
  // elementwise.
  std::size_t min_shard_bytes = 0;

  // Asynchronous only: a worker that dies, fails or keeps others waiting longer than the group's deadline is left out,
  // and the job goes on as long as one worker is left; start it with lockrun --allow-worker-failures. Each server logs
  // the loss. The complete group and workers() end with the loss. The loss of a server ends the job, and so does that
  // of worker 0 before its first step, or while update_replicas() sends its weights to several servers.
  bool allow_worker_failures = false;

  bool operator==(const ParameterServerOptions&) const = default;
};

// A part of a parameter on a server.
struct ParameterPiece {
  std::size_t parameter = 0;          // its number
  std::int64_t begin = 0, count = 0;  // elements of the parameter, entire rows
  int server = 0;
};

// The pieces of all parameters, in order. Pure. Throws InvalidArgument if a server would hold nothing (more servers
// than pieces).
std::vector<ParameterPiece> shard_pieces(const std::vector<NamedTensor>& parameters, int servers, Sharding sharding,
                                         std::size_t min_shard_bytes);

// The number of each parameter's server, if tensors stay whole. Pure. Throws what shard_pieces() throws.
std::vector<int> shard_parameters(const std::vector<NamedTensor>& parameters, int servers, Sharding sharding);

// The same as a text, with a line for each piece, and the bytes of each server below:
//   parameter            bytes  server
//   hidden.weight[0:16]  1024   ps:0
//   hidden.weight[16:]   1024   ps:1
//   hidden.bias          32     ps:0
std::string describe_shards(const std::vector<NamedTensor>& parameters, int servers, Sharding sharding,
                            std::size_t min_shard_bytes = 0);

}  // namespace lockstep::train
#pragma GCC visibility pop
