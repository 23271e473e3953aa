// For servers and workers of `parameter_server`: the task of each rank, and the set-up of the job.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/train/strategy.h"
#include "src/train/strategies/one_process/device_copies.h"
#include "src/train/strategies/parameter_server/parameter_messages.h"
#include "src/train/strategies/parameter_server/parameter_shards.h"

namespace lockstep::train {

inline constexpr const char* kParameterServer = "parameter_server";

// The tasks of all ranks, which the ranks exchange when the strategy is made.
struct TaskTable {
  std::shared_ptr<ProcessGroup> group;
  Task own;
  std::vector<int> workers, servers;  // by index: the rank

  // Collective. Throws InvalidArgument, the same on all ranks, for tasks that occur twice, are missing, or do not make
  // a job.
  static TaskTable gather(std::shared_ptr<ProcessGroup> group, const ParameterServerOptions& options);

  int worker_of(int rank) const;         // its index
  std::string describe(int rank) const;  // "worker:1 (rank 1)"

  // "parameter_server: ps:0: ...; rank 1 is worker:1": puts this process's task before a group's message, and the tasks
  // of the ranks that the message names after it.
  std::string with_tasks(const std::string& message) const;

  // Calls call(), and adds the tasks' names to an error of the group, unless it has them.
  template <typename Call> void with_names(Call&& call) const {
    try {
      call();
    } catch (const PeerLost& error) {
      throw PeerLost("{}", with_tasks(error.what()));
    } catch (const TimeoutError& error) {
      throw TimeoutError("{}", with_tasks(error.what()));
    } catch (const MismatchError& error) {
      throw MismatchError("{}", with_tasks(error.what()));
    }
  }
};

// The set-up of a job, the same on servers and workers except for the devices.
struct ParameterServerJob {
  TaskTable tasks;
  ParameterServerOptions options;
  Training training;
  std::vector<Device*> devices;          // that compute; on a server: the CPU
  Replica replica;                       // on a server: its shape counts, not its weights
  std::unique_ptr<DeviceCopies> copies;  // of a worker with several devices, and then there is no replica
  ShardLayout layout;
  std::vector<Link> links;                // to the tasks of the other job, by index
  std::shared_ptr<ProcessGroup> workers;  // null on a server

  bool is_server() const { return tasks.own.job == Task::Job::kServer; }
  ProcessGroup& group() const { return *tasks.group; }
  Replica& model() { return copies ? (*copies)[0] : replica; }
  // Ends the job for all its processes, or if workers may fail, for those linked to this one.
  void abort(const std::string& reason) const;
};

std::unique_ptr<Strategy> make_server(ParameterServerJob job);
std::unique_ptr<Strategy> make_worker(ParameterServerJob job);

}  // namespace lockstep::train
