// The members of a process group; for the files that implement it.
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

#include "lockstep/comm/process_group.h"
#include "src/comm/flight/flight_log.h"
#include "src/comm/group/backend_choice.h"

namespace lockstep {

struct RunningContinuation;  // src/comm/call/continuation.h

// Longer ones would overflow where they are added to a clock.
inline constexpr std::chrono::milliseconds kLongestTimeout = std::chrono::hours(30 * 24);

// A call's data, before it is numbered.
struct CallData {
  const void* send = nullptr;
  void* receive = nullptr;
  std::size_t count = 0;
  DType dtype = DType::kUInt8;
  ReduceOp op = ReduceOp::kSum;
  int root = -1;
  std::shared_ptr<const Layout> layout = {};
};

// Which of its job's groups a group is, for the flight records.
struct GroupOrigin {
  std::string name = "group";
  std::string job = {};           // empty: the first group of its job, which gives it a name
  std::vector<int> members = {};  // by rank of the group: its rank in the job; empty: the group is the whole job
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

  // Throws InvalidArgument when the group has none; `what` wants it.
  Backend& backend(DeviceKind device, std::string_view what) const;

  // Numbers the call; a call that is refused here leaves the numbers as they were.
  Operation number(OperationKind kind, const CallData& data, const CallOptions& call, FlightRecorder::By by);
  Operation number_graph(const CapturedCalls& calls, CallOptions call, FlightRecorder::By by);
  // `is_async`: an asynchronous collective.
  void check_usable(std::string_view what, DeviceKind device, bool is_async) const;
  void check_continuation(const RunningContinuation& running, std::string_view what, bool is_async_collective) const;
  void run(OperationKind kind, const CallData& data, const CallOptions& call);
  Work start(OperationKind kind, const CallData& data, const CallOptions& call);
  void meet_all(const Operation& barrier);  // of monitored_barrier()
  Work send(Message message, const CallOptions& call);
  Work receive(Message message, const CallOptions& call);
  std::chrono::milliseconds timeout_of(const CallOptions& call) const;
  void leave() noexcept;
  void end_all(const Backend* over, const std::string& why);

  class [[gnu::visibility("hidden")]] Chain;
  std::array<std::shared_ptr<Chain>, 2> chains;  // by the kind of device; Works hold them

  Place place;
  Device* device;  // null: local_device()
  std::chrono::milliseconds timeout;
  std::shared_ptr<flight::RecordedGroup> recorded;  // before the backends, which note in it
  std::atomic<bool> is_over{false};                 // these three as well
  std::mutex ending;                                // held while one backend's end ends the other
  bool is_leaving = false;
  Backends backends;
  std::array<Capabilities, 2> capabilities;  // theirs
  // How this group was made; split() makes others alike.
  std::shared_ptr<Store> store;  // null for a group around backends made by hand
  std::string token;
  std::string advertise_address;
  ProcessGroupOptions options;
  std::uint64_t splits = 0;

  std::uint64_t sequence = 0;
  std::uint64_t allocations = 0;
  std::vector<std::uint64_t>
      barrier_mail;  // of monitored_barrier(); here, since a barrier that fails leaves messages under way
  std::int32_t graphs = 0;
  std::uint32_t wrappers = 0;
  PassState next_pass;  // which the next call is to compare; of the thread that calls
  std::atomic<bool> is_capturing{false}, has_left{false};  // read by continuations as well
  const pid_t process;                                     // that made the group
};

}  // namespace lockstep
