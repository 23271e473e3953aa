// The GPU on which a test runs, or the reason why there is none; and the programs next to it, in a build folder or a
// bundle.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/core/device.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/tensor/tensor.h"
#include "tests/support/reproducible.h"

namespace lockstep::testing {

struct FoundGpu {
  Device* device = nullptr;
  std::string why_not;
};

// The GPU that LOCKSTEP_DEVICE names (cuda:N), else the first. Searched once.
inline const FoundGpu& found_gpu() {
  static const FoundGpu kFound = [] {
    if (!env::text(env::kDevice).value_or("").starts_with("cuda")) ::setenv(env::kDevice, "cuda", 1);
    FoundGpu found;
    try {
      found.device = &local_device(0);
    } catch (const Error& error) {
      found.why_not = error.what();
    }
    return found;
  }();
  return kFound;
}

// For SetUp(): without a GPU the test is skipped with the reason, or fails with it if LOCKSTEP_TEST_NEEDS_GPU=1
// (scripts/test-gpu): on a machine that must prove something, an unusable GPU is a failure.
inline void need_gpu() {
  if (found_gpu().device != nullptr) return;
  if (env::integer("LOCKSTEP_TEST_NEEDS_GPU", 0, 1).value_or(0) == 1) FAIL() << "no GPU: " << found_gpu().why_not;
  GTEST_SKIP() << "no GPU: " << found_gpu().why_not;
}

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override { need_gpu(); }
  static Device& gpu() { return *found_gpu().device; }
};

// The tensor's values on the host, after the device has computed them.
template <typename T> std::vector<T> host_values(const Tensor& tensor) {
  const Tensor here = tensor.to(cpu_device());
  tensor.device().default_stream().synchronize();
  const auto values = here.span<T>();
  return {values.begin(), values.end()};
}

// The path of a program of this build or bundle: next to this one, or in its own folder of the build.
inline std::string program(const std::string& name) {
  namespace fs = std::filesystem;
  const fs::path here = fs::read_symlink("/proc/self/exe").parent_path();
  for (const char* folder : {".", "../../launcher", "../../examples", "../conformance"})
    if (const fs::path file = (here / folder / name).lexically_normal(); fs::exists(file)) return file.string();
  throw Error("{} is neither next to {} nor in the build's folders", name, here.string());
}

}  // namespace lockstep::testing
