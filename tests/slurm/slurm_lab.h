// Slurm itself, for tests: slurmctld, munged and two slurmd, each slurmd in a network, UTS and mount namespace of its
// own, so that nodes "n0" and "n1" have their own address, name and /etc/hosts. As Debian sets it up, each node's own
// name is 127.0.1.1 to itself.
//
// All files lie in one temporary folder; the daemons are children that end with the lab, and with its process if that
// is killed.
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

  // What keeps this process from making one; "" when nothing does. For a test's GTEST_SKIP.
  static std::string obstacle();

  // Returns when both nodes are idle. Throws std::runtime_error that holds the daemons' last lines.
  SlurmLab();
  ~SlurmLab();
  SlurmLab(const SlurmLab&) = delete;
  SlurmLab& operator=(const SlurmLab&) = delete;

  // What runs a command on node 0, where users would log in; its environment is that of `options_of`. Ranks that it
  // starts through Slurm carry its mark as well, see Child::alive().
  std::vector<std::string> on_node_zero(const std::vector<std::string>& command) const;
  ChildOptions options_of(Environment environment) const;

  // Runs a command of Slurm to its end, and returns what it printed.
  std::string ask(const std::vector<std::string>& command) const;
  // Until no job is left and all nodes are idle; false when that takes too long.
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
