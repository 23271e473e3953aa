// What the system of this run does not let a test do.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <fstream>

namespace lockstep::testing {

// Root of a user namespace may not have other users.
inline bool can_be_other_users() {
  long first = 0, outside = 0, count = 0;
  std::ifstream("/proc/self/uid_map") >> first >> outside >> count;
  return ::geteuid() == 0 && count > 1;
}

// QEMU's user mode, in which Meson runs the tests of another architecture, has handlers of its own for signals, and
// memory of its own.
inline bool is_emulated() {
  const char* const wrapper = std::getenv("MESON_EXE_WRAPPER");
  return wrapper != nullptr && *wrapper != '\0';
}

}  // namespace lockstep::testing
