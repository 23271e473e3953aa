// Decisions about several nodes: whether a node may join, which ranks it has, and why the job ends. Pure: no socket, no
// process, no clock.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "src/launch/attempts/restart_policy.h"
#include "src/launch/supervise/failure_policy.h"

namespace lockstep::launch {

// A node's description, which its lockrun sends when it joins.
struct NodeFacts {
  int node = 0;
  int nodes = 1;  // the value of its --nnodes
  int ranks = 1;
  std::string host;
  long pid = 0;                    // of its lockrun
  std::uint16_t program_port = 0;  // a free port on that node; node 0's becomes MASTER_PORT
  int max_restarts = 0;            // the value of its --max-restarts

  bool operator==(const NodeFacts&) const = default;
};

// "node 1 on host b": the place of an event.
std::string where(const NodeFacts& facts);

// "node 2", "nodes 1, 2 and 5 more".
std::string list_nodes(const std::vector<int>& nodes);

// The nodes that have joined. Node 0, whose lockrun keeps the list, is in it from the start.
class Roster {
 public:
  explicit Roster(const NodeFacts& zero);

  // Adds a node. Returns "", or the reason why it cannot join.
  std::string admit(const NodeFacts& facts);
  void forget(int node) { present_.erase(node); }
  std::vector<int> missing() const;
  std::vector<NodeFacts> nodes() const;  // in node order

 private:
  std::map<int, NodeFacts> present_;
};

// Ranks are numbered node by node, whatever their number on each.
struct NodePlace {
  int first_rank = 0;
  int world_size = 0;
};
NodePlace place_of(const std::vector<NodeFacts>& nodes, int node);

// How one node's part of the job ended; the deciding report also says how the job ended.
struct NodeReport {
  enum class Kind {
    kFinished,     // all its ranks ended successfully
    kFailed,       // a rank, or its lockrun, failed by itself
    kConsequence,  // its ranks lost a peer, and none failed by itself
    kInterrupted,  // its lockrun received a signal
    kLost,         // its lockrun could not continue, or is gone without a report
  };
  Kind kind = Kind::kFinished;
  int node = 0;
  int exit_code = 0;  // the code with which every lockrun exits
  int signal = 0;     // the first signal to the ranks
  std::string cause;  // complete lines, the same on all nodes
  Clock::time_point when{};
  std::optional<FirstFailure> failure = {};  // of a rank, if it ended this node's part
  std::optional<std::int64_t> step = {};     // where it was then
  // Of the deciding report: whether the lockruns meet again and restart the job, or why not.
  bool restarts = false;
  int pause_s = 0;  // before that
  std::string why_no_restart = {};
};

// Adds a report. A node's first report counts, except that a node that has finished may still be interrupted while it
// waits for the others.
void enter(std::vector<NodeReport>& reports, NodeReport report);

// The deciding report, or nullopt while it is open: the first report that is not a consequence; kFinished when all have
// finished. A consequence decides if no cause arrives within `wait_for_cause`, or no node is left to report one.
// `reports` are in the order of arrival.
std::optional<NodeReport> decide_for_nodes(const std::vector<NodeReport>& reports, std::size_t nodes,
                                           Clock::time_point now, std::chrono::milliseconds wait_for_cause);

// The report for a node whose lockrun has ended without one.
NodeReport loss_of(const NodeFacts& facts, Clock::time_point now);
// The report for node 0 if it is still connected and has not decided for `silent`.
NodeReport silence_of(const NodeFacts& facts, std::chrono::seconds silent);
// The report for a node whose lockrun is still connected and has not answered for `silent`.
NodeReport stall_of(const NodeFacts& facts, std::chrono::milliseconds silent, Clock::time_point now);

// The message of a lockrun at the end of a job that another node has ended. Ends with a newline.
std::string describe_decision(const NodeReport& decision, const NodeFacts& blamed);

}  // namespace lockstep::launch
