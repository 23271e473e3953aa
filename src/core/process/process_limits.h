// The system's limits for this process: processor time, and why no further process or thread starts, in words (its own
// are "Resource temporarily unavailable").
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace lockstep {

// The text of an error number. For EAGAIN and ENOMEM also the limits that stand in the way, and what to do. Only of
// calls that start a process or a thread.
std::string why_not_started(int error);

// How often the system has killed a process of this process's control group because memory ran out; nullopt: it does
// not say.
std::optional<long> out_of_memory_kills();

// The same of the file of a group: memory.events of version 2, memory.oom_control of version 1.
std::optional<long> out_of_memory_kills_in(const std::filesystem::path& group);

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
