// A control group with a limit of memory, in which the kernel kills a process that needs more.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "src/core/process/process_limits.h"

namespace lockstep::testing {

// A new memory control group, of version 1 or 2.
class MemoryGroup {
 public:
  explicit MemoryGroup(long bytes) {
    const bool is_version_two = std::filesystem::exists("/sys/fs/cgroup/cgroup.controllers");
    path_ = fmt::format("/sys/fs/cgroup/{}lockstep-test-{}", is_version_two ? "" : "memory/", ::getpid());
    std::error_code failure;
    std::filesystem::create_directory(path_, failure);
    std::ofstream limit(path_ / (is_version_two ? "memory.max" : "memory.limit_in_bytes"));
    is_usable_ = !failure && limit << bytes << std::flush && out_of_memory_kills_in(path_);
  }
  ~MemoryGroup() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  bool is_usable() const { return is_usable_; }
  // A shell command that puts the shell, and the processes that it starts, into the group.
  std::string enter() const { return fmt::format("echo $$ > {}/cgroup.procs", path_.string()); }

 private:
  std::filesystem::path path_;
  bool is_usable_ = false;
};

}  // namespace lockstep::testing
