// Slurm itself, for tests: slurmctld, munged and two slurmd. Each slurmd has its own network, UTS and mount namespace,
// so that nodes "n0" and "n1" have their own addresses, names and /etc/hosts. As on Debian, each node's own name maps
// to 127.0.1.1 on itself.
//
// All files are in one temporary folder. The daemons are children that end with the lab, or with its process if that is
// killed.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "tests/faults/child.h"
#include "tests/network/network_lab.h"

namespace lockstep::testing {

class SlurmLab {
 public:
  using Environment = std::map<std::string, std::string>;

  // Why this process cannot make a lab; "" if it can. For a test's GTEST_SKIP.
  static std::string obstacle();

  // Returns when both nodes are idle. Throws std::runtime_error with the daemons' last lines.
  SlurmLab();
  ~SlurmLab();
  SlurmLab(const SlurmLab&) = delete;
  SlurmLab& operator=(const SlurmLab&) = delete;

  // The command line that runs a command on node 0, where users would log in; its environment is that of `options_of`.
  // Ranks that it starts through Slurm also carry its mark, see Child::alive().
  std::vector<std::string> on_node_zero(const std::vector<std::string>& command) const;
  ChildOptions options_of(Environment environment) const;

  // Runs a command of Slurm to its end, and returns its output.
  std::string ask(const std::vector<std::string>& command) const;
  // Waits until there is no job and all nodes are idle; returns false if that takes too long.
  bool becomes_idle() const;

 private:
  void write_configuration() const;
  void start_daemon(int node, const std::string& command);
  void make_folders() const;

  NetworkLab network_{2};
  const std::string folder_;
  std::deque<Child> daemons_;  // munged, slurmctld, slurmd of node 0 and of node 1
};

}  // namespace lockstep::testing
