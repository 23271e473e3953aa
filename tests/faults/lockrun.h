// lockrun with the rank program's acts.
#pragma once

#include <string>
#include <vector>

#include "tests/faults/child.h"

namespace lockstep::testing {

inline std::vector<std::string> lockrun(int ranks, const std::vector<std::string>& acts, const std::vector<std::string>& flags = {}) {
  std::vector<std::string> command = {LOCKRUN, "-n", std::to_string(ranks)};
  command.insert(command.end(), flags.begin(), flags.end());
  command.push_back(RANK_PROGRAM);
  command.insert(command.end(), acts.begin(), acts.end());
  return command;
}

// The same under launch::spawn: the program is its own launcher.
inline std::vector<std::string> spawning(int ranks, const std::vector<std::string>& acts) {
  std::vector<std::string> command = {RANK_PROGRAM, "--spawn", std::to_string(ranks)};
  command.insert(command.end(), acts.begin(), acts.end());
  return command;
}

}  // namespace lockstep::testing
