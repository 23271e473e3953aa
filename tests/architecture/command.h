// Runs a shell command, for tests that start compilers and similar programs.
#pragma once

#include <sys/wait.h>

#include <cstdio>
#include <string>

namespace lockstep::testing {

struct CommandEnd {
  int exit_code;       // -1: ended by a signal
  std::string output;  // stdout and stderr
};

// Blocks until the command has ended; ends it after 5 minutes. `most` is for programs whose output is data.
inline CommandEnd run_command(const std::string& command, std::size_t most = 4000) {
  std::FILE* pipe = popen(("{ timeout 300 " + command + "; } 2>&1 </dev/null").c_str(), "r");
  std::string output;
  for (char buffer[4096]; const std::size_t got = std::fread(buffer, 1, sizeof buffer, pipe);)
    output.append(buffer, got);
  const int status = pclose(pipe);
  if (output.size() > most) output = output.substr(0, most) + "...";
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, output};
}

}  // namespace lockstep::testing
