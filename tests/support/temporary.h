// A place for a test's file: a name that no other test of any process has.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

namespace lockstep::testing {

inline std::string temporary(const std::string& name) {
  static int count = 0;
  return ::testing::TempDir() + "lockstep-" + std::to_string(::getpid()) + "-" + std::to_string(++count) + "-" + name;
}

}  // namespace lockstep::testing
