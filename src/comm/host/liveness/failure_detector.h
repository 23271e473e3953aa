// Finds out which ranks are alive, and why a group has ended. There is one failure detector for each rank and group,
// with its own thread.
//
// A group ends with one group error, the same on all ranks. Ranks that share a control block write it there, and the
// first one is kept. Other ranks have a control connection between each two (control_connections.h): a rank that sees a
// reason proposes it to the lowest living rank; that rank accepts the first proposal; and each rank that receives the
// group error sends it to all others. A rank that does not answer in time is skipped, so that the agreement takes a
// bounded, short time. The store is not involved: neither its host's death nor a call that blocks in it delays a group
// error.
//
// A process that dies closes its liveness fd or its control connections. One that is stopped, or lost with its machine,
// sends no heartbeats. The thread of this class sends them, so that a rank may compute for any time; they carry the
// rank's last activity.
// carry what it did last.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/place.h"
#include "src/comm/call/group_error.h"
#include "src/comm/host/machine/activity.h"
#include "src/comm/host/machine/control_block.h"
#include "src/comm/host/machine/shared_memory_provider.h"
#include "src/comm/host/wire/tcp_mesh.h"

namespace lockstep::host {

// The ranks of this machine, if they share a control block.
struct MachinePeers {
  ControlLayout layout;
  SharedMemoryProvider* provider;  // outlives the failure detector
  int local_rank;                  // this rank's index in the control block
  std::vector<int> ranks;          // ranks in the group, by index in the control block
};

struct FailureDetectorOptions {
  Place place;                                     // in the group
  std::chrono::milliseconds stall_timeout{30000};  // longest time without a heartbeat
  std::chrono::milliseconds store_timeout{60000};  // for the rendezvous of the control connections
};

class FailureDetector {
 public:
  // For ranks of one machine.
  FailureDetector(const FailureDetectorOptions& options, const MachinePeers& machine);
  // For ranks of several machines, or without shared memory. Collective: `links` is the result of connect_mesh(), by
  // rank. With a `machine`, the group error is also written to its control block, whose sleepers are woken.
  FailureDetector(const FailureDetectorOptions& options, std::vector<TcpPeer> links,
                  const MachinePeers* machine = nullptr);
  ~FailureDetector();
  FailureDetector(const FailureDetector&) = delete;
  FailureDetector& operator=(const FailureDetector&) = delete;

  bool over() const { return over_.load() || machines_error_->load() == GroupErrorRecord::kWritten; }
  GroupError group_error() const;  // kNone while the group exists
  // Any thread may call it. Returns when the group has ended, for this reason or for one that another rank saw first.
  void declare(GroupErrorKind kind, const std::string& text);
  // Waits for a group error, if this rank saw a consequence and needs the cause. Returns false if there is none after
  // that time.
  bool await_over(std::chrono::milliseconds at_most);
  // `wake` is called once, on any thread, when the group ends: it shuts sockets down and wakes sleepers. It must not
  // wait for other threads, and its data must outlive the failure detector or its stop().
  void on_over(std::function<void()> wake);
  // Throws the group error; `doing` begins the text.
  [[noreturn]] void throw_group_error(std::string_view doing) const {
    lockstep::throw_group_error(group_error(), doing);
  }
  void throw_if_over(const std::function<std::string()>& doing) const {
    if (over()) [[unlikely]]
      throw_group_error(doing());
  }

  // Records what this rank does, for its peers' messages. For the one thread that executes operations.
  void begins(const Operation& operation) { activity_.begin(operation.signature, operation.purpose); }
  void finished() { activity_.finish(); }
  // Total time for which this process was stopped (with its job by Ctrl-Z, say); it does not count as delay of a peer.
  std::chrono::nanoseconds slept() const;

  // "rank 3 (pid 4711 on host b)".
  std::string name_of_rank(int rank) const;
  // The rank with that index in the control block.
  std::string name_of_local(int local_rank) const { return name_of_rank(rank_of_local(local_rank)); }
  int rank_of_local(int local_rank) const;
  int rank() const;
  // "last seen in all_reduce #39 (bucket 2), 31 s ago"; "" for this rank itself.
  std::string last_seen(int rank) const;
  // "rank 0 waited 300.0 s in all_reduce #40 for rank 2 (pid 4711 on host b), which did not arrive; rank 2 has finished
  // ...". `did_not`: "arrive" or "finish".
  std::string describe_absence(const Operation& operation, std::chrono::steady_clock::duration waited,
                               const std::vector<int>& absent, std::string_view did_not) const;

  // Sends a goodbye: this rank has finished and is not lost. Call it before closing what peers watch.
  void leave() noexcept;
  bool has_left(int rank) const;
  // Wakes the threads that sleep on the control block.
  void wake_all();
  // No callback runs afterwards.
  void stop() noexcept;

 private:
  class AtExit;
  class Impl;
  std::atomic<bool> over_{false};
  std::atomic<std::uint32_t> no_machine_{GroupErrorRecord::kOpen};
  const std::atomic<std::uint32_t>* machines_error_ = &no_machine_;  // state of the record in the control block
  ActivityRecord own_record_{};                                      // if there is no control block
  ActivityWriter activity_{&own_record_};
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::host
