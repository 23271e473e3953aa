// lockrun diagnose DIR [--json]: explains the flight records in a folder.
#pragma once

#include <string>
#include <vector>

namespace lockstep::launcher {

// The report. `words` are what follows `diagnose`. Throws InvalidArgument for a wrong word, FileError for a folder without records.
std::string diagnose_command(const std::vector<std::string>& words);

}  // namespace lockstep::launcher
