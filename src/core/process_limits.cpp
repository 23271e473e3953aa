#include "src/core/process_limits.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>

namespace lockstep {

namespace {

namespace fs = std::filesystem;

// Where the pids controller of this process's control group lies: version 2 has one hierarchy, version 1 one of its own for it.
fs::path control_group() {
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const auto names = line.find(':'), path = line.find(":/", names == std::string::npos ? 0 : names);
    if (names == std::string::npos || path == std::string::npos) continue;
    const std::string controllers = path > names ? line.substr(names + 1, path - names - 1) : "";
    if (controllers.empty()) return "/sys/fs/cgroup" + line.substr(path + 1);
    if (controllers == "pids") return "/sys/fs/cgroup/pids" + line.substr(path + 1);
  }
  return {};
}

// The smallest of the group and those above it; nullopt: none has one, or the system does not say.
std::optional<long> limit_of_control_group() {
  std::optional<long> smallest;
  for (fs::path group = control_group(); group.string().starts_with("/sys/fs/cgroup"); group = group.parent_path()) {
    long limit = 0;
    if (std::ifstream(group / "pids.max") >> limit) smallest = std::min(smallest.value_or(limit), limit);
  }
  return smallest;
}

}  // namespace

std::string why_not_started(int error) {
  std::string text = std::strerror(error);
  if (error != EAGAIN) return text;
  text += ": no further process or thread is allowed";
  rlimit of_user{};
  if (::getrlimit(RLIMIT_NPROC, &of_user) == 0 && of_user.rlim_cur != RLIM_INFINITY)
    text += fmt::format("; this user may have at most {} processes and threads (RLIMIT_NPROC, ulimit -u)", of_user.rlim_cur);
  if (const auto of_group = limit_of_control_group())
    text += fmt::format("; this container or service at most {} (pids.max of its control group)", *of_group);
  return text + "; allow more, or start fewer ranks";
}

}  // namespace lockstep
