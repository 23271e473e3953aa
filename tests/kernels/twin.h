// Runs one kernel twice, as the plain CPU kernel and on the device under test, on the same values; and compares what
// they wrote.
//
// Every array lies between guards of a pattern, which no kernel may touch, and where the table promises no more, one
// element off its alignment. A third run of the plain kernel on absolute values tells how large the summed products are
// that a bound refers to.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "tests/gpu/gpu.h"
#include "tests/kernels/cases/cases.h"

namespace lockstep::testing {

enum class Values { kGiven, kAbsolute };

// The arrays of one run, between guards.
class GuardedBench : public Bench {
 public:
  GuardedBench(Device& device, const KernelTable& kernels, DType type, Values values)
      : Bench(device, kernels, type), values_(values) {}
  ~GuardedBench() override;

  // What the outputs hold, in the order in which they were added. Fails the test where a guard was written over.
  std::vector<Floats> results(const std::string& what);

 protected:
  std::byte* add(const Bytes& bytes, std::size_t element_bytes, Place place, Read read) override;
  Floats chosen(Floats values) const override {
    if (values_ == Values::kAbsolute)
      for (float& value : values) value = std::abs(value);
    return values;
  }

 private:
  struct Array {
    Buffer memory;
    std::size_t offset, bytes;
    Index count;
    Read read;  // empty: an input
  };
  static constexpr std::size_t kGuard = 64;
  static constexpr std::byte kPattern{0xA5};

  const Values values_;
  std::vector<Array> arrays_;
};

// What is compared with the plain kernels: the CPU's, the CUDA kernels on a GPU, or as emulated_cuda/ runs them on the
// CPU, the threads of a block from the first to the last, or the other way round.
class TwinTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override;
  // One bound an output, or one for all.
  void compare(const std::string& what, const std::vector<Bound>& bounds, const Work& work,
               DType type = DType::kFloat32);
  Device& device() { return *device_; }
  const KernelTable& kernels() { return *kernels_; }
  bool is_emulated() const { return GetParam().starts_with("emulated"); }

 private:
  Device* device_ = nullptr;
  const KernelTable* kernels_ = nullptr;
};

// A sanitizer is slow, and sees what it looks for in either order; ASan in one type of 16 bits, TSan, which looks for
// threads that do not wait for each other, in any type.
#if defined(EMULATED_UNDER_TSAN)
#define LOCKSTEP_TWIN_KINDS "cpu", "cuda", "emulated_forwards"
inline constexpr DType kTwinTypes[] = {DType::kFloat32};
#elif defined(EMULATED_UNDER_ASAN)
#define LOCKSTEP_TWIN_KINDS "cpu", "cuda", "emulated_forwards"
inline constexpr DType kTwinTypes[] = {DType::kFloat32, DType::kBFloat16};
#else
#define LOCKSTEP_TWIN_KINDS "cpu", "cuda", "emulated_forwards", "emulated_backwards"
inline constexpr DType kTwinTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
#endif
#define LOCKSTEP_TWINS(suite)                                                      \
  INSTANTIATE_TEST_SUITE_P(Devices, suite, ::testing::Values(LOCKSTEP_TWIN_KINDS), \
                           [](const auto& test) { return test.param; })

}  // namespace lockstep::testing
