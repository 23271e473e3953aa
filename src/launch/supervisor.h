// Watches the ranks of a job until the last one is gone: carries their output, notices the first failure, ends the others.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "src/launch/failure_policy.h"
#include "src/launch/guard.h"
#include "src/launch/line_cutter.h"
#include "src/launch/node_link.h"
#include "src/launch/process.h"
#include "src/launch/screen.h"
#include "src/launch/signals.h"

struct pollfd;

namespace lockstep::launch {

struct SupervisorOptions {
  bool prefix = true;
  bool redraw = false;                          // stdout is a terminal: rank 0's '\r' lines are redrawn
  bool same_terminal = false;                   // and stderr is that terminal too
  std::chrono::milliseconds grace{};            // first failure to SIGKILL
  std::chrono::milliseconds interrupt_grace{};  // a signal to the launcher to SIGKILL
};

class Supervisor {
 public:
  // `nodes`: the job's other nodes, with which this one begins and ends; null when there are none.
  Supervisor(const SupervisorOptions& options, std::vector<RankProcess> processes, const Guard& guard, SignalGate& signals,
             NodeLink* nodes);
  ~Supervisor();  // kills and reaps what still runs: only after an exception
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  // Blocks until nothing of the job is left; returns the exit code to leave with.
  int run();

 private:
  struct Stream {
    Fd fd;
    LineCutter cutter;
  };
  // running -> ended (a zombie, which keeps its process group's number taken) -> reaped (its group is gone as well).
  struct Rank {
    int rank;
    pid_t pid;
    Stream output, errors;
    LastLines last_errors;
    std::optional<Clock::time_point> ended, reaped;
    std::string task;  // "ps:0"; empty: it is known by its rank alone
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
  void read_stream(Rank& rank, bool is_error);
  void finish_stream(Rank& rank, bool is_error);
  void handle_signals();
  void ask_for_flight_records();
  void pause_job();
  void collect_exits();
  void judge_exits();
  std::optional<long> memory_kills() const;
  void check_outputs();
  void begin_ending(int signal, int exit_code, Clock::time_point kill_at, std::string message);
  void tell_nodes(NodeReport::Kind kind, int signal);
  void follow_nodes();
  std::string blame() const;
  void kill_when_due();
  void clear_up(Rank& rank);
  void signal_groups(int signal) const;
  int conclude();

  SupervisorOptions options_;
  const Guard& guard_;
  SignalGate& signals_;
  NodeLink* const nodes_;
  Screen screen_;
  std::vector<Rank> ranks_;
  std::vector<RankExit> exits_;
  const std::optional<long> memory_kills_before_;
  std::optional<Verdict> failure_;
  std::optional<Ending> ending_;
  int interrupts_ = 0;
  bool has_told_end_ = false;  // to the other nodes
};

}  // namespace lockstep::launch
