// Lockstep's own environment variables. A misspelt one would silently do nothing, so it is reported.
#pragma once

#include <string>
#include <vector>

namespace lockstep::env {

// All names in core/environment.h that begin with kPrefix.
const std::vector<std::string>& known_variables();

// One sentence for each variable of the environment ("NAME=value") whose name begins with kPrefix but is unknown, with
// the most similar known one. Variables for tests and for programs with their own prefix, LOCKSTEP_TEST_..., are
// ignored.
std::vector<std::string> doubts_about(const std::vector<std::string>& environment);

// The same for this process's environment.
std::vector<std::string> doubts_about_environment();

}  // namespace lockstep::env
