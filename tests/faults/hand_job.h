// Ranks started by hand, as a user or a cluster would: a process each, which find each other by RANK, WORLD_SIZE,
// MASTER_ADDR and MASTER_PORT.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "tests/faults/child.h"

namespace lockstep::testing {

using Environment = std::map<std::string, std::string>;

// Returns a loopback port that was free a moment ago.
std::string free_port();

inline std::vector<std::string> collective_rank(const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {COLLECTIVE_RANK};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

class HandJob {
 public:
  explicit HandJob(int world_size, Environment common = {}) : world_size_(world_size), common_(std::move(common)) {}

  // Starts one rank; `extra` comes before the arguments of all ranks. `network`: see ChildOptions.
  Child& start(int rank, const std::vector<std::string>& arguments, Environment extra = {}) {
    return start_command(rank, collective_rank(arguments), std::move(extra));
  }
  Child& start_command(int rank, const std::vector<std::string>& command, Environment extra = {}, int network = -1) {
    extra.insert(common_.begin(), common_.end());
    const std::string number = std::to_string(rank), size = std::to_string(world_size_);
    extra.insert({{"RANK", number},
                  {"LOCAL_RANK", number},
                  {"WORLD_SIZE", size},
                  {"LOCAL_WORLD_SIZE", size},
                  {"MASTER_ADDR", "127.0.0.1"},
                  {"MASTER_PORT", port_}});
    return ranks_.emplace_back(command, ChildOptions{.environment = std::move(extra), .network = network});
  }
  void start_all(const std::vector<std::string>& arguments) {
    for (int rank = 0; rank < world_size_; ++rank) start(rank, arguments);
  }
  Child& operator[](int nth_started) { return ranks_[static_cast<std::size_t>(nth_started)]; }
  const std::string& port() const { return port_; }

 private:
  int world_size_;
  Environment common_;
  std::string port_ = free_port();
  std::deque<Child> ranks_;  // references stay valid
};

}  // namespace lockstep::testing
