// lockrun with the rank program's acts. The lines of each rank can be selected, since the order and folding of several
// ranks' lines depend on time.
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

// The lines of one rank, in order, without those of other ranks.
inline std::string lines_of(const std::string& rank, const std::string& output) {
  std::string lines;
  std::istringstream all(output);
  for (std::string line; std::getline(all, line);)
    if (line.rfind("[" + rank + "]", 0) == 0) lines += line + '\n';
  return lines;
}

// The same with launch::spawn: the program is its own launcher.
inline std::vector<std::string> spawning(int ranks, const std::vector<std::string>& acts) {
  std::vector<std::string> command = {RANK_PROGRAM, "--spawn", std::to_string(ranks)};
  command.insert(command.end(), acts.begin(), acts.end());
  return command;
}

}  // namespace lockstep::testing
