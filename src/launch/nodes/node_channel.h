// One connection between two lockruns. It proves the job's token, then carries messages in both directions. Never
// blocks.
//
// The handshake is like the store's, which has the same port: node 0 sends Hello (a nonce), the other side the token's
// proof, and node 0 its own proof or its refusal. Then each message is a length and JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/comm/net/socket.h"
#include "src/comm/net/token.h"
#include "src/launch/nodes/node_plan.h"

struct pollfd;

namespace lockstep::launch {

inline constexpr int kLookMs = 100;  // the longest time between two checks for messages
// After a name did not resolve, or node 0 was not reachable.
inline constexpr std::chrono::milliseconds kPauseBetweenTries(200);
inline constexpr std::chrono::seconds kHandshakeTime(10);
// How long a node that will not take part waits for the others, to tell them.
inline constexpr std::chrono::milliseconds kTimeToTell(5000);

// A message from one lockrun to another.
struct NodeMessage {
  enum class Kind {
    kJoin,              // to node 0: nodes[0] is the sender; `why` if it will not take part
    kRefusal,           // from node 0: the reason in `why`
    kWaiting,           // from node 0: `why` names the missing nodes
    kStart,             // from node 0: all nodes
    kReport,            // to node 0
    kEnd,               // from node 0: the report that decides for the job
    kHeartbeatRequest,  // to a lockrun whose decision or report is awaited
    kHeartbeat,         // the answer
  };
  Kind kind = Kind::kJoin;
  std::string why;
  std::vector<NodeFacts> nodes;
  NodeReport report;
  // kJoin: the number of the next attempt, as the sender counts. kStart: as all do, and the attempt's id.
  int attempt = 0;
  std::string attempt_id = {};
};
std::string encode(const NodeMessage& message);
std::optional<NodeMessage> decode(std::string_view text);  // nullopt: not a message of this version

class NodeChannel {
 public:
  enum class Side { kCoordinator, kAgent };  // node 0's lockrun, and that of any other node
  enum class State {
    kShaking,
    kOpen,
    kRefused,       // the token differs
    kStore,         // agent: a store answers, so the job is already running
    kOtherService,  // agent: another service answers
    kClosed,
  };

  NodeChannel(Fd fd, Side side, std::string_view token);

  State state() const { return state_; }
  std::string peer() const { return peer_endpoint(fd_.get()).text(); }
  Endpoint peer_address() const { return peer_endpoint(fd_.get()); }
  Clock::time_point since() const { return since_; }

  void send(const NodeMessage& message);  // once open; it is sent when the socket accepts it
  std::optional<NodeMessage> next();      // the next message that has arrived
  pollfd to_poll() const;
  void move();  // writes and reads as much as possible
  // Checks the other side after ranks have lost a peer: from now on it counts as gone if it does not acknowledge data
  // within 3 s.
  void doubt() const;
  void close() { state_ = State::kClosed, fd_.reset(); }

 private:
  void shake_hands();
  void greet_coordinator();
  void verify_agent();
  void verify_coordinator();
  void cut_messages();
  void flush();
  void read();
  template <typename T> bool take(T& value);
  template <typename T> void put(const T& value);

  Fd fd_;
  const Side side_;
  const Clock::time_point since_ = Clock::now();
  State state_ = State::kShaking;
  const std::string token_;
  ProofExchange exchange_;
  bool has_sent_proof_ = false;
  bool close_when_sent_ = false;
  std::string in_, out_;
  std::deque<NodeMessage> messages_;
};

}  // namespace lockstep::launch
