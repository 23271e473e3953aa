// Who is alive, and why a group is over: one watch per rank and group, with a thread of its own.
//
// A group ends with one verdict, the same on all ranks. Ranks that share a control block write it there, the first one
// wins. Others have a control connection between any two (watch_links.h): whoever sees a reason proposes it to the lowest rank
// that lives, that rank takes the first it gets, and whoever learns the verdict tells all others. A rank that does not answer in
// time is passed over, so that agreeing takes a moment, and never long. The store has no part in it: neither its host's death
// nor a call that blocks in it delays a verdict.
//
// A process that dies closes its life line, or its control connections; one that is stopped, or lost with its machine, sends no
// heartbeats. They come from the thread here, so that a rank may compute for as long as it likes, and carry what it did last.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/place.h"
#include "src/comm/ring/activity.h"
#include "src/comm/ring/control_block.h"
#include "src/comm/ring/fabric.h"
#include "src/comm/ring/tcp_mesh.h"
#include "src/comm/ring/verdict.h"

namespace lockstep::ring {

// The ranks of this machine, where they share a control block.
struct WatchedMachine {
  ControlLayout layout;
  LocalFabric* fabric;     // outlives the watch
  int local_rank;          // this rank's index in the control block
  std::vector<int> ranks;  // of the group, by index in the control block
};

struct WatchOptions {
  Place place;                                     // in the group
  std::chrono::milliseconds stall_timeout{30000};  // how long a rank may give no sign of life
  std::chrono::milliseconds store_timeout{60000};  // for meeting on the control connections
};

class GroupWatch {
 public:
  // Ranks of one machine.
  GroupWatch(const WatchOptions& options, const WatchedMachine& machine);
  // Ranks of several machines, or that share no memory. Collective: `links` is connect_mesh()'s, by rank. With a `machine`, the
  // verdict is told to its control block as well, whose sleepers are woken.
  GroupWatch(const WatchOptions& options, std::vector<TcpPeer> links, const WatchedMachine* machine = nullptr);
  ~GroupWatch();
  GroupWatch(const GroupWatch&) = delete;
  GroupWatch& operator=(const GroupWatch&) = delete;

  bool over() const { return over_.load() || machines_verdict_->load() == VerdictRecord::kWritten; }
  Verdict verdict() const;  // kNone while the group is not over
  // From any thread. Returns when the group is over: for this reason, or for one that another rank saw first.
  void declare(VerdictKind kind, const std::string& text);
  // Waits for a verdict, for one who saw a consequence and wants the cause; false: there is none after that time.
  bool await_over(std::chrono::milliseconds at_most);
  // Called once, from whatever thread, when the group is over: shut sockets down, wake sleepers. It must not wait for others, and
  // what it uses must outlive the watch, or its stop().
  void on_over(std::function<void()> wake);
  // Throws the verdict as an error; `doing` begins the text.
  [[noreturn]] void throw_verdict(std::string_view doing) const { ring::throw_verdict(verdict(), doing); }
  void throw_if_over(const std::function<std::string()>& doing) const {
    if (over()) [[unlikely]]
      throw_verdict(doing());
  }

  // This rank's note of what it does, for its peers' messages; by the one thread that executes operations.
  void begins(const Operation& operation) { activity_.begin(operation.signature, operation.purpose); }
  void finished() { activity_.finish(); }
  // For how long this process was stopped so far (with its job by Ctrl-Z, say): no peer is late for that.
  std::chrono::nanoseconds slept() const;

  // "rank 3 (pid 4711 on host b)".
  std::string name_of_rank(int rank) const;
  // Of the rank with that index in the control block.
  std::string name_of_local(int local_rank) const { return name_of_rank(rank_of_local(local_rank)); }
  int rank_of_local(int local_rank) const;
  int rank() const;
  // "last seen in all_reduce #39 (bucket 2), 31 s ago"; "" of this rank itself.
  std::string last_seen(int rank) const;
  // "rank 0 waited 300.0 s in all_reduce #40 for rank 2 (pid 4711 on host b), which did not arrive; rank 2 has finished ...".
  // `did_not`: "arrive" or "finish".
  std::string describe_absence(const Operation& operation, std::chrono::steady_clock::duration waited, const std::vector<int>& absent,
                               std::string_view did_not) const;

  // Goodbye: this rank has finished and is not lost. Call it before what peers watch is closed.
  void leave() noexcept;
  bool has_left(int rank) const;
  // Wakes those who sleep on the control block.
  void ring_bell();
  // No callback runs any more afterwards.
  void stop() noexcept;

 private:
  class AtExit;
  class Impl;
  std::atomic<bool> over_{false};
  std::atomic<std::uint32_t> no_machine_{VerdictRecord::kOpen};
  const std::atomic<std::uint32_t>* machines_verdict_ = &no_machine_;  // state of the record in the control block
  ActivityRecord own_record_{};                                        // without a control block
  ActivityWriter activity_{&own_record_};
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::ring
