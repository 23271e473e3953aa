// Tells which actions the system of this run does not let a test perform.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <fstream>

namespace lockstep::testing {

// Root of a user namespace may not have other users. The tests use 12345 and 65534.
inline bool can_be_other_users() {
  std::ifstream map("/proc/self/uid_map");
  bool has_users = false;
  for (long first = 0, outside = 0, count = 0; map >> first >> outside >> count;)
    has_users = has_users || (first <= 12345 && first + count > 65534);
  return ::geteuid() == 0 && has_users;
}

// QEMU's user mode, in which Meson runs the tests of another architecture, has handlers of its own for signals, and
// memory of its own.
inline bool is_emulated() {
  const char* const wrapper = std::getenv("MESON_EXE_WRAPPER");
  return wrapper != nullptr && *wrapper != '\0';
}

}  // namespace lockstep::testing
