// lockrun's command line. Pure: words in, a decision out.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "lockstep/comm/bootstrap.h"
#include "lockstep/launch/launch.h"

namespace lockstep::launcher {

// Something to print on stdout, and nothing to run.
struct Information {
  std::string text;
};

// Flags end at the first word that is not one; the rest is the program and its arguments. The environment tells what
// srun knows of nodes and the flags do not say. Throws InvalidArgument.
std::variant<launch::LaunchSpec, Information> parse_command_line(const std::vector<std::string>& words,
                                                                 const EnvironmentLookup& lookup);

}  // namespace lockstep::launcher
