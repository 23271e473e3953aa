// Parses lockrun's command line. Pure.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "lockstep/comm/bootstrap.h"
#include "lockstep/launch/launch.h"

namespace lockstep::launcher {

// A text to print on stdout; no ranks are started.
struct Information {
  std::string text;
};

// Flags end at the first word that is not one; the rest is the program and its arguments. What the flags do not say
// about nodes comes from srun's variables. Throws InvalidArgument.
std::variant<launch::LaunchSpec, Information> parse_command_line(const std::vector<std::string>& words,
                                                                 const EnvironmentLookup& lookup);

}  // namespace lockstep::launcher
