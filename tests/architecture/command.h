// A shell command and its end, for tests that start compilers and the like.
#pragma once

#include <sys/wait.h>

#include <cstdio>
#include <string>

namespace lockstep::testing {

struct CommandEnd {
  int exit_code;       // -1: a signal
  std::string output;  // stdout and stderr, at most 4000 characters
};

// Blocks until the command has ended, or was ended after 5 minutes.
inline CommandEnd run_command(const std::string& command) {
  std::FILE* pipe = popen(("{ timeout 300 " + command + "; } 2>&1 </dev/null").c_str(), "r");
  std::string output;
  for (char buffer[4096]; const std::size_t got = std::fread(buffer, 1, sizeof buffer, pipe);)
    output.append(buffer, got);
  const int status = pclose(pipe);
  if (output.size() > 4000) output = output.substr(0, 4000) + "...";
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, output};
}

}  // namespace lockstep::testing
