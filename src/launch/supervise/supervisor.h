// Watches the ranks of a job until the last one has ended; detects the first failure, and ends the others.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "src/launch/nodes/node_link.h"
#include "src/launch/output/output_relay.h"
#include "src/launch/supervise/failure_policy.h"
#include "src/launch/supervise/guard.h"
#include "src/launch/supervise/memory_kills.h"
#include "src/launch/supervise/process.h"
#include "src/launch/supervise/signals.h"
#include "src/launch/topology/busy_cores.h"

struct pollfd;

namespace lockstep::launch {

struct SupervisorOptions {
  RelayOptions output;
  std::vector<int> cores;                       // of all ranks on this node; empty: unknown
  std::chrono::milliseconds grace{};            // from the first failure to SIGKILL
  std::chrono::milliseconds interrupt_grace{};  // from a signal to the launcher to SIGKILL
  // Completes the report to the other nodes on this node's first failure: what lockrun knows about it.
  std::function<void(NodeReport& report, const std::vector<RankExit>& exits, const Decision& failure,
                     bool memory_ran_out)>
      describe;
};

class Supervisor {
 public:
  // `nodes`: the links to the job's other nodes, with which this one starts and ends; null if there are none.
  Supervisor(const SupervisorOptions& options, std::vector<RankProcess> processes, const Guard& guard,
             SignalGate& signals, NodeLink* nodes);
  ~Supervisor();  // kills and reaps the remaining processes, after an exception
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  // Blocks until all processes of the job have ended; returns the exit code for the launcher.
  int run();

  // After run().
  bool was_interrupted() const { return interrupts_ > 0; }
  const std::vector<RankExit>& exits() const { return exits_; }        // in the order in which they were seen
  const std::optional<Decision>& failure() const { return failure_; }  // of a rank on this node, if it ended the job
  std::vector<std::string> last_lines_of_cause() const;                // on stderr
  bool memory_ran_out() const { return memory_ran_out_; }  // the system has ended processes of this control group

 private:
  // running -> ended (a zombie, which keeps its process group's number in use) -> reaped (its group is gone as well).
  struct Rank {
    int rank;
    pid_t pid;
    std::string task;  // "ps:0"; empty: it has only its rank
    bool may_fail;
    std::optional<Clock::time_point> ended = {};
    bool is_reaped = false;
    Clock::time_point looked{};  // when its streams were last found open after that
    Clock::duration lingered{};  // how long they have been open, without the time in which we did not read them
  };
  struct Ending {
    int exit_code = 0;
    Clock::time_point kill_at{};
    bool killed = false;
    std::string message;
  };

  bool finished() const;
  int longest_sleep_ms() const;
  void wait();
  void handle_signals();
  void handle(int signal);
  void ask_for_flight_records();
  void pass_on(int signal);
  void pause_job();
  void collect_exits();
  int workers() const;  // that may fail
  void decide_exits();
  void report_allowed_failures();
  void check_outputs();
  Ending output_failure(Clock::time_point kill_at) const;
  void begin_ending(int signal, int exit_code, Clock::time_point kill_at, std::string message);
  void report_to_nodes(NodeReport::Kind kind, int signal);
  void follow_nodes();
  std::string blame() const;
  std::string allowed_failures() const;
  void kill_when_due();
  bool has_given_up() const;
  void clear_up(std::size_t place);
  void reap(Rank& rank);
  void signal_groups(int signal) const;
  void await_reader();
  int conclude();
  int exit_code() const;

  SupervisorOptions options_;
  const Guard& guard_;
  SignalGate& signals_;
  NodeLink* const nodes_;
  OutputRelay output_;
  std::vector<Rank> ranks_;
  BusyCores busy_cores_;
  std::vector<RankExit> exits_;
  std::size_t reported_ = 0;  // exits_ of which a failure that is allowed has been reported
  MemoryKillLog memory_kills_;
  bool memory_ran_out_ = false;  // when the failure was seen
  std::optional<Decision> failure_;
  std::optional<Ending> ending_;
  int interrupts_ = 0;
  std::optional<Clock::time_point> give_up_at_;  // set by the second signal
  bool has_reported_end_ = false;                // to the other nodes
};

}  // namespace lockstep::launch
