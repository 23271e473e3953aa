// The links between the lockruns of a job while it runs. Node 0's lockrun is the coordinator; that of every other node
// is an agent, which is connected only to the coordinator. A lockrun that waits for another one after its own ranks
// have finished requests heartbeats from it (heartbeat.h).
// Each agent reports how its node's ranks ended, and the coordinator decides for all (node_plan.h). The coordinator's
// port becomes the store's once all agents have joined. Everything runs in the caller's thread, between its polls,
// since ranks are forked from a process without threads.
#pragma once

#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/launch/launch.h"
#include "src/launch/nodes/node_arrival.h"
#include "src/launch/nodes/node_channel.h"
#include "src/launch/nodes/node_plan.h"
#include "src/launch/supervise/heartbeat.h"

namespace lockstep::launch {

class Waiting;

class NodeLink {
 public:
  NodeLink(NodeFacts own, const NodePatience& patience) : own_(std::move(own)), patience_(patience) {}
  virtual ~NodeLink() = default;

  const NodeFacts& own() const { return own_; }
  const std::vector<NodeFacts>& nodes() const { return nodes_; }
  const NodeFacts& facts_of(int node) const { return nodes_[static_cast<std::size_t>(node)]; }
  const Endpoint& store() const { return store_; }  // numeric, as this node reaches it
  virtual Fd take_listener() { return Fd(); }       // node 0: the socket of the store

  virtual void add_descriptors(std::vector<pollfd>& polled) const = 0;
  virtual void move() = 0;                     // reads and writes what is ready
  virtual bool needs_clock() const = 0;        // a decision depends on the clock: call move() every 100 ms
  virtual void report(NodeReport report) = 0;  // how this node's ranks ended, see enter()
  virtual bool may_leave() const = 0;          // once this node's ranks are gone: no other lockrun needs this one

  const std::optional<NodeReport>& decision() const { return decision_; }

  // The decision is this node's own, because node 0 is lost or does not answer.
  bool has_lost_coordinator() const { return has_lost_coordinator_; }

  // The number of the attempt that the nodes have met for, the highest that any of them counts, and a text that no
  // other attempt has.
  int attempt() const { return attempt_; }
  const std::string& attempt_id() const { return attempt_id_; }
  // Node 0: called once, with the report that decides; may set .restarts and .why_no_restart, for all nodes.
  using Judge = std::function<void(NodeReport& decision)>;
  void judge_by(Judge judge) { judge_ = std::move(judge); }

  // Moves until may_leave(): for a lockrun without running ranks.
  void part();

 protected:
  const NodeFacts own_;
  const NodePatience patience_;
  std::vector<NodeFacts> nodes_;
  Endpoint store_;
  std::optional<NodeReport> decision_;
  bool has_lost_coordinator_ = false;
  int attempt_ = 0;
  std::string attempt_id_;
  Judge judge_;
};

// The side of node 0.
class NodeCoordinator : public NodeLink {
 public:
  // Waits on `listener` until all others have joined, and prints the missing ones every few seconds. Throws
  // RendezvousError if nodes are missing at the deadline, or one will not take part.
  NodeCoordinator(NodeFacts own, Fd listener, std::string token, const NodePatience& patience,
                  const NodeArrival& arrival = {});

  Fd take_listener() override { return std::move(listener_); }
  void add_descriptors(std::vector<pollfd>& polled) const override;
  void move() override;
  bool needs_clock() const override { return is_undecided() || decision_.has_value(); }
  void report(NodeReport report) override;
  bool may_leave() const override;

 private:
  struct Connection {
    NodeChannel channel;
    int node = -1;                            // set when it has joined
    std::optional<Heartbeat> heartbeat = {};  // while its report is awaited
    bool has_answered = false;                // since the doubt began
  };

  void gather(const NodeArrival& arrival);
  void refuse_all(const std::string& why);
  void accept_all();
  void admit_all();
  void admit(Connection& agent, const NodeMessage& joining);
  void remove_closed_agents();
  void send_to_all(const NodeMessage& message);
  void hear(Connection& agent);
  void await_report_of(Connection& agent);
  void doubt_all();
  void decide();
  const Connection* silent_agent() const;
  bool is_undecided() const { return !decision_ && !reports_.empty(); }

  Fd listener_;
  const std::string token_;
  Roster roster_;
  std::list<Connection> agents_;
  std::vector<NodeReport> reports_;
  bool in_doubt_ = false;
  Clock::time_point leave_by_{};
};

// The side of any other node.
class NodeAgent : public NodeLink {
 public:
  // Connects to node 0, joins, and waits for the start. Throws RendezvousError if no lockrun answers, the token is
  // refused, the job is already running, or node 0 refuses this node or has given up. If node 0 is lost while this node
  // waits for a job that may restart, connects again.
  NodeAgent(NodeFacts own, const Endpoint& coordinator, std::string token, const NodePatience& patience,
            const NodeArrival& arrival = {});

  void add_descriptors(std::vector<pollfd>& polled) const override;
  void move() override;
  bool needs_clock() const override { return (reported_ != Clock::time_point() || heartbeat_) && !decision_; }
  void report(NodeReport report) override;
  bool may_leave() const override { return decision_.has_value(); }

 private:
  void connect(Waiting& waiting, const NodeArrival& arrival);
  void hear(NodeMessage message);
  void await_decision();
  void decide_alone(NodeReport report);
  bool shake_hands(Clock::time_point until);
  bool await_start(const NodeArrival& arrival);
  bool obey(const NodeMessage& message);

  const Endpoint coordinator_;
  const std::string token_;
  std::optional<NodeChannel> channel_;
  std::string last_status_;             // from node 0, while waiting
  Clock::time_point reported_{};        // set by a report on which node 0 decides at once
  std::optional<Heartbeat> heartbeat_;  // of node 0, once this node's ranks have finished
};

}  // namespace lockstep::launch
