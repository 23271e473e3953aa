#include "src/launch/catching.h"

#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace lockstep::launch {

namespace {

bool catches(pid_t process, int signal) {
  std::ifstream status("/proc/" + std::to_string(process) + "/status");
  constexpr const char* kCaught = "SigCgt:";
  for (std::string line; std::getline(status, line);)
    if (line.rfind(kCaught, 0) == 0) {
      const std::uint64_t mask = std::strtoull(line.c_str() + std::char_traits<char>::length(kCaught), nullptr, 16);
      return (mask >> (signal - 1) & 1) != 0;
    }
  return false;
}

}  // namespace

int signal_those_who_catch(pid_t group, int signal) {
  int count = 0;
  std::error_code failure;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", failure)) {
    const auto process = static_cast<pid_t>(std::atol(entry.path().filename().c_str()));
    if (process <= 0 || ::getpgid(process) != group || !catches(process, signal)) continue;
    if (::kill(process, signal) == 0) ++count;
  }
  return count;
}

}  // namespace lockstep::launch
