// lockrun's commands that start no ranks and print a report. `words` are those behind the command's name; each throws
// InvalidArgument for a wrong one.
#pragma once

#include <string>
#include <vector>

namespace lockstep::launcher {

// lockrun diagnose DIR [--json]: explains the flight records in a folder. Throws FileError for a folder without
// records.
std::string diagnose_command(const std::vector<std::string>& words);

// lockrun topology [--json]: what this machine has for ranks to compute on and to talk through.
std::string topology_command(const std::vector<std::string>& words);

}  // namespace lockstep::launcher
