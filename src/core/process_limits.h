// The system's limits for this process: processor time, and why no further process or thread starts, in words (its own are "Resource
// temporarily unavailable").
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace lockstep {

// The text of an error number. For EAGAIN also the limits that stand in the way, and what to do. Only of calls that start a process or a
// thread.
std::string why_not_started(int error);

// A container's or service's: as much time as so many cores have, shared by all processes of a control group.
struct CpuQuota {
  int cores = 1;  // a part of one counts as one
  std::filesystem::path group;
};

// The smallest of this process's control group and those above it; nullopt: none has one, or the system does not say.
std::optional<CpuQuota> cpu_quota();

// The same from `group` up to `top`; cpu_quota()'s are those below /sys/fs/cgroup.
std::optional<CpuQuota> smallest_cpu_quota(const std::filesystem::path& group, const std::filesystem::path& top);

}  // namespace lockstep
