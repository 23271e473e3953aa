// The environment variables of Lockstep's own: a misspelt one would do nothing, in silence.
#pragma once

#include <string>
#include <vector>

namespace lockstep::env {

// All names in core/environment.h that begin with kPrefix.
const std::vector<std::string>& known_variables();

// A sentence for each variable of the environment ("NAME=value") whose name begins with kPrefix and is not known, with
// the known one that is nearest. Those for tests and for programs that carry a mark of their own, LOCKSTEP_TEST_...,
// are left alone.
std::vector<std::string> doubts_about(const std::vector<std::string>& environment);

// The same of this process's environment.
std::vector<std::string> doubts_about_environment();

}  // namespace lockstep::env
