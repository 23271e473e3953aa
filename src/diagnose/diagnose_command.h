// The command lockrun diagnose.
#pragma once

#include <string>
#include <vector>

namespace lockstep::diagnose {

// lockrun diagnose DIR [--json]: explains the flight records in a folder. `words` are those after "diagnose". Throws
// InvalidArgument for an invalid word, FileError for a folder without records.
std::string diagnose_command(const std::vector<std::string>& words);

}  // namespace lockstep::diagnose
