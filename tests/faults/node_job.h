// A job of several nodes: a lockrun for each, on the machines of a laboratory, or all of them on loopback.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/faults/child.h"
#include "tests/faults/hand_job.h"
#include "tests/network/network_lab.h"

namespace lockstep::testing {

class NodeJob {
 public:
  // Node i has ranks[i] ranks (a single node is an ordinary lockrun) and, with a laboratory, is its machine i. They
  // meet at `host`, by default node 0's address.
  NodeJob(const std::vector<int>& ranks, const std::vector<std::string>& command, Environment environment = {},
          const NetworkLab* lab = nullptr, std::string host = "") {
    if (host.empty()) host = lab == nullptr ? "127.0.0.1" : NetworkLab::address(0);
    environment.insert({"LOCKSTEP_TOKEN", "a token of this test"});
    for (std::size_t node = 0; node < ranks.size(); ++node) {
      std::vector<std::string> words = {LOCKRUN, "--no-fold", "-n", std::to_string(ranks[node])};
      if (ranks.size() > 1)
        for (const auto& [flag, value] :
             std::vector<std::pair<std::string, std::string>>{{"--nnodes", std::to_string(ranks.size())},
                                                              {"--node-rank", std::to_string(node)},
                                                              {"--master-addr", host},
                                                              {"--master-port", port_}})
          words.insert(words.end(), {flag, value});
      words.insert(words.end(), command.begin(), command.end());
      if (lab == nullptr && ranks.size() > 1) environment["LOCKSTEP_NODE"] = std::to_string(node);  // no common memory
      const int network = lab == nullptr ? -1 : lab->network(static_cast<int>(node));
      nodes_.emplace_back(words, ChildOptions{.environment = environment, .network = network});
    }
  }
  Child& operator[](int node) { return nodes_[static_cast<std::size_t>(node)]; }
  int nodes() const { return static_cast<int>(nodes_.size()); }
  std::vector<const Child*> all() const {
    std::vector<const Child*> children;
    for (const Child& node : nodes_) children.push_back(&node);
    return children;
  }
  // Waits until every node's first rank reports that it trains.
  bool is_training() const {
    for (const Child& node : nodes_)
      if (!node.wait_for_output("is running")) return false;
    return true;
  }

 private:
  std::string port_ = free_port();
  std::deque<Child> nodes_;  // references stay valid
};

// One of two nodes, of two ranks and of one, that a test starts, kills and starts again as a supervisor such as systemd
// would.
inline std::unique_ptr<Child> start_restarting_node(int node, const std::string& port,
                                                    const std::vector<std::string>& flags,
                                                    const std::vector<std::string>& program) {
  std::vector<std::string> words = {LOCKRUN,
                                    "--no-fold",
                                    "-n",
                                    node == 0 ? "2" : "1",
                                    "--nnodes",
                                    "2",
                                    "--node-rank",
                                    std::to_string(node),
                                    "--master-addr",
                                    "127.0.0.1",
                                    "--master-port",
                                    port,
                                    "--max-restarts",
                                    "3"};
  words.insert(words.end(), flags.begin(), flags.end());
  words.insert(words.end(), program.begin(), program.end());
  return std::make_unique<Child>(words, ChildOptions{.environment = {{"LOCKSTEP_TOKEN", "a token of this test"},
                                                                     {"LOCKSTEP_STORE_TIMEOUT_S", "60"},
                                                                     {"LOCKSTEP_NODE", std::to_string(node)}}});
}

}  // namespace lockstep::testing
