// The system's limits for this process: processor time, and the reason why no other process or thread can be started,
// in words (the system's own are "Resource temporarily unavailable").
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace lockstep {

// The text of an error number. For EAGAIN and ENOMEM also the limits that were reached, and what to do. Only for calls
// that start a process or a thread.
std::string why_not_started(int error);

// How often the system has killed a process of this process's control group because memory ran out; nullopt: it does
// not report that.
std::optional<long> out_of_memory_kills();

// The same from the file of a group: memory.events of version 2, memory.oom_control of version 1.
std::optional<long> out_of_memory_kills_in(const std::filesystem::path& group);

// The processor time of a container or service, in cores, shared by all processes of a control group.
struct CpuQuota {
  int cores = 1;  // rounded up
  std::filesystem::path group;
};

// The smallest quota of this process's control group and its ancestors; nullopt: none has one, or the system does not
// report it.
std::optional<CpuQuota> cpu_quota();

// The same from `group` up to `top`; cpu_quota() searches below /sys/fs/cgroup.
std::optional<CpuQuota> smallest_cpu_quota(const std::filesystem::path& group, const std::filesystem::path& top);

}  // namespace lockstep
