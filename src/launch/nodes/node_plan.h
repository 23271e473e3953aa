// Decisions about several nodes: may a node join, which ranks does it hold, why does the job end. Pure: no socket, no
// process, no clock.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "src/launch/supervise/failure_policy.h"

namespace lockstep::launch {

// A node, as its lockrun describes it when it joins.
struct NodeFacts {
  int node = 0;
  int nodes = 1;  // as it was told by --nnodes
  int ranks = 1;
  std::string host;
  long pid = 0;                    // of the lockrun
  std::uint16_t program_port = 0;  // was free there: node 0's becomes MASTER_PORT

  bool operator==(const NodeFacts&) const = default;
};

// "node 1 on host b": where something happened.
std::string where(const NodeFacts& facts);

// "node 2", "nodes 1, 2 and 5 more".
std::string list_nodes(const std::vector<int>& nodes);

// The nodes that have joined. Node 0, whose lockrun keeps the list, is in from the start.
class Roster {
 public:
  explicit Roster(const NodeFacts& zero);

  // Takes a node in; returns "", or the reason why it cannot.
  std::string admit(const NodeFacts& facts);
  void forget(int node) { present_.erase(node); }
  std::vector<int> missing() const;
  std::vector<NodeFacts> nodes() const;  // in node order

 private:
  std::map<int, NodeFacts> present_;
};

// Ranks are numbered node by node, however many each has.
struct NodePlace {
  int first_rank = 0;
  int world_size = 0;
};
NodePlace place_of(const std::vector<NodeFacts>& nodes, int node);

// How one node's part of the job ended, and once it is the job's verdict, how the job did.
struct NodeReport {
  enum class Kind {
    kFinished,     // all its ranks ended well
    kFailed,       // a rank, or its lockrun, failed by itself
    kConsequence,  // ranks lost a peer, and none of this node failed by itself
    kInterrupted,  // its lockrun was sent a signal
    kLost,         // its lockrun could not go on, or is gone and has not said why
  };
  Kind kind = Kind::kFinished;
  int node = 0;
  int exit_code = 0;  // what every lockrun leaves with
  int signal = 0;     // what the ranks are sent first
  std::string cause;  // whole lines, the same on all nodes
  Clock::time_point when{};
};

// Enters a report. A node's first one stands, save that one which has finished may still be interrupted while it waits
// for the others.
void enter(std::vector<NodeReport>& reports, NodeReport report);

// The verdict, or nothing while it is open: the first report that is no consequence; kFinished when all have finished.
// A consequence stands when its cause has not come within `wait_for_cause`, or no node is left to report one. `reports`
// are in the order of arrival.
std::optional<NodeReport> judge_nodes(const std::vector<NodeReport>& reports, std::size_t nodes, Clock::time_point now,
                                      std::chrono::milliseconds wait_for_cause);

// For a node whose lockrun has ended without a report.
NodeReport loss_of(const NodeFacts& facts, Clock::time_point now);
// For node 0 when it is still connected and has not decided for `silent`.
NodeReport silence_of(const NodeFacts& facts, std::chrono::seconds silent);
// For a node whose lockrun is still connected and has not answered for `silent`.
NodeReport stall_of(const NodeFacts& facts, std::chrono::milliseconds silent, Clock::time_point now);

// The message of a lockrun at the end of a job for which another node is to blame. Ends with a newline.
std::string tell_verdict(const NodeReport& verdict, const NodeFacts& blamed);

}  // namespace lockstep::launch
