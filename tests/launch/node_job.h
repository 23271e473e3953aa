// Lockruns as the nodes of one job: real processes on this machine, each with its own --node-rank, all on loopback.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <string>
#include <vector>

#include "tests/faults/hand_job.h"

namespace lockstep::testing {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Words = std::vector<std::string>;

// Failures on other nodes must be known within seconds, a lost node within 10 s; the rest is for a loaded machine.
inline constexpr milliseconds kSoon(10'000), kLost(15'000), kSlow(30'000);

inline Words acts(const Words& words) {
  Words command = {RANK_PROGRAM};
  command.insert(command.end(), words.begin(), words.end());
  return command;
}

class NodeJob {
 public:
  explicit NodeJob(int nodes, Environment environment = {}, std::string host = "127.0.0.1")
      : nodes_(nodes), environment_(std::move(environment)), host_(std::move(host)) {}

  Child& start(int node, int ranks, const Words& program, Environment extra = {}, const Words& flags = {},
               int output_fd = -1) {
    Words words = {LOCKRUN,
                   "--no-fold",
                   "--nnodes",
                   std::to_string(nodes_),
                   "--node-rank",
                   std::to_string(node),
                   "--master-addr",
                   host_,
                   "--master-port",
                   port_,
                   "-n",
                   std::to_string(ranks)};
    words.insert(words.end(), flags.begin(), flags.end());
    words.insert(words.end(), program.begin(), program.end());
    extra.insert(environment_.begin(), environment_.end());
    return children_.emplace_back(words, ChildOptions{.environment = std::move(extra), .output_fd = output_fd});
  }
  const std::string& port() const { return port_; }

 private:
  int nodes_;
  Environment environment_;
  std::string host_, port_ = free_port();
  std::deque<Child> children_;
};

}  // namespace lockstep::testing
