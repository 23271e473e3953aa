// For servers and workers of `parameter_server`: the task of each rank, and the messages between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/train/strategy.h"
#include "src/train/strategies/model_copies.h"
#include "src/train/strategies/one_process/device_copies.h"
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

// The group over which a server and a worker send messages, and the peer's rank in it.
struct Link {
  std::shared_ptr<ProcessGroup> group;
  int peer = -1;
};

// From a worker to a server.
struct Notice {
  enum class Kind : std::int32_t {
    kWeights = 1,  // from worker 0 before its first step, or when it has changed its model: its weights follow, to ps:0
                   // the rest of its state, and the optimizer's state if `has_state`; it expects an Answer
    kJoins,        // from any other worker then: it requests the weights and the rest
    kStep,         // a step begins: its gradients follow when they are complete, and the worker expects the weights
    kComplete,     // to ps:0, with backup workers: all servers have this step's gradients, or will have them
    kFetch,        // it requests the optimizer's state, and unless a step is the same for all, the weights
    kCallEnded,    // see ServedCalls
    kFinished,
  };
  Kind kind = Kind::kStep;
  float lr = 0;  // valid if has_lr
  std::int32_t has_lr = 0;
  std::int32_t has_state = 0;
  std::int64_t step = 0;  // from 1: this worker's, or with backup workers that of ps:0
};
static_assert(std::is_trivially_copyable_v<Notice> && sizeof(Notice) == 24);

// From ps:0 to a worker, with the weights; from any server when it has taken weights.
struct Answer {
  std::int64_t global_step = 0;
  std::int64_t dropped = 0;  // gradients of this worker
};
static_assert(std::is_trivially_copyable_v<Answer> && sizeof(Answer) == 16);

// The group belongs to the user: tags that no program uses by chance.
inline constexpr int kNoticeTag = 0x70730001, kFloatsTag = 0x70730002, kRestTag = 0x70730003, kAnswerTag = 0x70730004,
                     kStateTag = 0x70730005, kDecisionTag = 0x70730006, kResultTag = 0x70730007;

// Texts of any length.
void send_text(const Link& link, std::string_view text, int tag);
std::string receive_text(const Link& link, int tag, const CallOptions& call = {});

// Frozen parameters and buffers, which the servers' floats do not have. As bytes they follow each other in the order of
// the model.
std::vector<NamedTensor> rest_of(const Replica& replica);
std::vector<std::byte> bytes_of(const std::vector<NamedTensor>& tensors);
void set_to_bytes(const std::vector<NamedTensor>& tensors, const std::vector<std::byte>& bytes);

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
