// lockrun with the rank program's acts. Each rank's lines come by themselves: whether two fold depends on how soon they
// follow each other.
#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "tests/faults/child.h"

namespace lockstep::testing {

inline std::vector<std::string> lockrun(int ranks, const std::vector<std::string>& acts,
                                        const std::vector<std::string>& flags = {}) {
  std::vector<std::string> command = {LOCKRUN, "-n", std::to_string(ranks), "--no-fold"};
  command.insert(command.end(), flags.begin(), flags.end());
  command.push_back(RANK_PROGRAM);
  command.insert(command.end(), acts.begin(), acts.end());
  return command;
}

// The lines of one rank, in their order: those of others stand between them.
inline std::string lines_of(const std::string& rank, const std::string& output) {
  std::string lines;
  std::istringstream all(output);
  for (std::string line; std::getline(all, line);)
    if (line.rfind("[" + rank + "]", 0) == 0) lines += line + '\n';
  return lines;
}

// The same under launch::spawn: the program is its own launcher.
inline std::vector<std::string> spawning(int ranks, const std::vector<std::string>& acts) {
  std::vector<std::string> command = {RANK_PROGRAM, "--spawn", std::to_string(ranks)};
  command.insert(command.end(), acts.begin(), acts.end());
  return command;
}

}  // namespace lockstep::testing
