// The members of a process group, for the files that implement it.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "src/comm/flight/flight_log.h"
#include "src/comm/group/backend_choice.h"

namespace lockstep {

struct RunningContinuation;  // src/comm/call/continuation.h

// Longer timeouts would overflow when they are added to a clock.
inline constexpr std::chrono::milliseconds kLongestTimeout = std::chrono::hours(30 * 24);

// A call's data before it is numbered.
struct CallData {
  const void* send = nullptr;
  void* receive = nullptr;
  std::size_t count = 0;
  DType dtype = DType::kUInt8;
  ReduceOp op = ReduceOp::kSum;
  int root = -1;
  std::shared_ptr<const Layout> layout = {};
};

// Identifies a group among those of its job, for the flight records.
struct GroupOrigin {
  std::string name = "group";
  std::string job = {};           // empty: the job's first group, which names the job
  std::vector<int> members = {};  // by rank of the group: the rank in the job; empty: the group is the entire job
  int job_world_size = 0;
  bool is_init_process_groups = false;
  std::function<void()> all_have_come = [] {};  // called on rank 0
};

class ProcessGroup::Impl {
 public:
  Impl(const Place& place, Backends backends, Device* device, std::chrono::milliseconds timeout,
       const GroupOrigin& origin);
  ~Impl();
  static std::shared_ptr<ProcessGroup> share(std::unique_ptr<Impl> impl);
  static std::shared_ptr<ProcessGroup> create(const Place& place, std::shared_ptr<Store> store, std::string token,
                                              const ProcessGroupOptions& options, std::string advertise_address,
                                              GroupOrigin origin);

  // Throws InvalidArgument if the group has none; `what` names the call.
  Backend& backend(DeviceKind device, std::string_view what) const;

  // Numbers the call. A call that is refused here leaves the numbers unchanged.
  Operation number(OperationKind kind, const CallData& data, const CallOptions& call, FlightRecorder::By by);
  Operation number_graph(const CapturedCalls& calls, CallOptions call, FlightRecorder::By by);
  // `is_async`: the call is an asynchronous collective.
  void check_usable(std::string_view what, DeviceKind device, bool is_async) const;
  void check_continuation(const RunningContinuation& running, std::string_view what, bool is_async_collective) const;
  void run(OperationKind kind, const CallData& data, const CallOptions& call);
  Work start(OperationKind kind, const CallData& data, const CallOptions& call);
  void meet_all(const Operation& barrier);  // for monitored_barrier()
  Work send(Message message, const CallOptions& call);
  Work receive(Message message, const CallOptions& call);
  std::chrono::milliseconds timeout_of(const CallOptions& call) const;
  void leave() noexcept;
  void finish_work_beside();  // calls before_leaving, once
  // Callbacks of a backend's failure detector hold it: memory that NCCL has allocated keeps its detector after the
  // group.
  struct Ending {
    std::atomic<bool> is_over{false};
    std::mutex mutex;  // held while one backend's end ends the other
    std::atomic<bool> is_leaving{false};
  };
  void end_all(Ending& state, const Backend* over, const std::string& why);

  class [[gnu::visibility("hidden")]] Chain;
  std::array<std::shared_ptr<Chain>, 2> chains;  // by kind of device; Works hold them

  Place place;
  Device* device;  // null: local_device()
  std::chrono::milliseconds timeout;
  std::shared_ptr<flight::RecordedGroup> recorded;  // destroyed after the backends, which record in it
  const std::shared_ptr<Ending> ending = std::make_shared<Ending>();
  Backends backends;
  std::array<Capabilities, 2> capabilities;  // of the backends
  // How this group was made; split() makes its groups in the same way.
  std::shared_ptr<Store> store;  // null for a group made with wrap()
  std::string token;
  std::string advertise_address;
  ProcessGroupOptions options;
  std::uint64_t splits = 0;
  std::vector<std::function<void()>> before_leaving;

  std::uint64_t sequence = 0;
  std::uint64_t allocations = 0;
  std::vector<std::uint64_t>
      barrier_mail;  // of monitored_barrier(); a member because a failed barrier leaves messages under way
  std::int32_t graphs = 0;
  std::uint32_t wrappers = 0;
  PassState next_pass;                                     // compared by the next call of the thread that calls
  std::atomic<bool> is_capturing{false}, has_left{false};  // continuations read them, too
  const pid_t process;                                     // the process that made the group
};

}  // namespace lockstep
