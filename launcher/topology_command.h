// lockrun topology [--json]: what this machine has for ranks to compute on and to talk through.
#pragma once

#include <string>
#include <vector>

namespace lockstep::launcher {

// The report. `words` are what follows `topology`. Throws InvalidArgument for a wrong word.
std::string topology_command(const std::vector<std::string>& words);

}  // namespace lockstep::launcher
