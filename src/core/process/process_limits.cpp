#include "src/core/process/process_limits.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>

namespace lockstep {

namespace {

namespace fs = std::filesystem;

const std::string kControlGroups = "/sys/fs/cgroup";

bool lists_controller(const std::string& controllers, const std::string& one) {
  return ("," + controllers + ",").find("," + one + ",") != std::string::npos;
}

// The folder of a controller for this process's control group: version 2 has one hierarchy, version 1 one per
// controller.
fs::path control_group(const std::string& controller) {
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const auto begin = line.find(':'), path = line.find(":/", begin == std::string::npos ? 0 : begin);
    if (begin == std::string::npos || path == std::string::npos) continue;
    const std::string controllers = path > begin ? line.substr(begin + 1, path - begin - 1) : "";
    if (controllers.empty()) return kControlGroups + line.substr(path + 1);
    if (lists_controller(controllers, controller)) return kControlGroups + ("/" + controllers) + line.substr(path + 1);
  }
  return {};
}

// The smallest limit of the group and its ancestors; nullopt: none has one, or the system does not report it.
std::optional<long> limit_of_control_group() {
  std::optional<long> smallest;
  for (fs::path group = control_group("pids"); group.string().starts_with(kControlGroups);
       group = group.parent_path()) {
    long limit = 0;
    if (std::ifstream(group / "pids.max") >> limit) smallest = std::min(smallest.value_or(limit), limit);
  }
  return smallest;
}

// The time that a group may compute in a period, in periods: in one file of version 2, in two of version 1. 0: no
// limit.
double quota_of(const fs::path& group) {
  double time = 0, period = 0;
  if (std::ifstream both(group / "cpu.max"); both)
    return both >> time >> period && time > 0 && period > 0 ? time / period : 0;
  const bool is_said =
      std::ifstream(group / "cpu.cfs_quota_us") >> time && std::ifstream(group / "cpu.cfs_period_us") >> period;
  return is_said && time > 0 && period > 0 ? time / period : 0;
}

}  // namespace

std::optional<CpuQuota> smallest_cpu_quota(const fs::path& group, const fs::path& top) {
  std::optional<CpuQuota> smallest;
  for (fs::path each = group; each.string().starts_with(top.string()); each = each.parent_path()) {
    const double quota = quota_of(each);
    const int cores = static_cast<int>(std::ceil(std::min(quota, 1e6)));
    if (cores > 0 && (!smallest || cores < smallest->cores)) smallest = CpuQuota{cores, each};
  }
  return smallest;
}

std::optional<CpuQuota> cpu_quota() { return smallest_cpu_quota(control_group("cpu"), kControlGroups); }

namespace {

// A thread's stack counts as address space. The system reports EAGAIN if it does not fit, as for too many threads.
std::string full_address_space() {
  rlimit space{}, stack{};
  if (::getrlimit(RLIMIT_AS, &space) != 0 || space.rlim_cur == RLIM_INFINITY) return "";
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t used = pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE));
  const bool has_size = ::getrlimit(RLIMIT_STACK, &stack) == 0 && stack.rlim_cur != RLIM_INFINITY;
  constexpr rlim_t kUsualStack = 8 << 20;
  if (used + (has_size ? stack.rlim_cur : kUsualStack) <= space.rlim_cur) return "";
  return fmt::format(
      "this process's address space is full: {} of {} MiB are in use (RLIMIT_AS, ulimit -v); raise the limit",
      used >> 20, space.rlim_cur >> 20);
}

}  // namespace

std::optional<long> out_of_memory_kills_in(const fs::path& group) {
  for (const char* name : {"memory.events", "memory.oom_control"}) {
    std::ifstream file(group / name);
    std::string key;
    for (long value = 0; file >> key >> value;)
      if (key == "oom_kill") return value;
  }
  return std::nullopt;
}

std::optional<long> out_of_memory_kills() { return out_of_memory_kills_in(control_group("memory")); }

std::string why_not_started(int error) {
  std::string text = std::strerror(error);
  if (error != EAGAIN && error != ENOMEM) return text;
  if (const std::string space = full_address_space(); !space.empty()) return text + ": " + space;
  if (error != EAGAIN) return text;
  text += ": no other process or thread may be started";
  rlimit of_user{};
  if (::getrlimit(RLIMIT_NPROC, &of_user) == 0 && of_user.rlim_cur != RLIM_INFINITY)
    text += fmt::format("; this user may have at most {} processes and threads (RLIMIT_NPROC, ulimit -u)",
                        of_user.rlim_cur);
  if (const auto of_group = limit_of_control_group())
    text += fmt::format("; this container or service may have at most {} (pids.max of its control group)", *of_group);
  return text + "; raise the limit, or start fewer ranks";
}

}  // namespace lockstep
