// Runs one kernel twice on the same values, as the plain CPU kernel and on the device under test, and compares the
// results.
//
// Every array lies between guards, which no kernel may change, and, where the table only promises this, one element off
// its alignment. The arrays of the CPU's kernels, which need no alignment, end at pages without access instead. A third
// run, of the plain kernel on absolute values, measures the size of the summed products to which a bound refers.
//
// Unless OMP_NUM_THREADS is set, the CPU's kernels run with one and with three threads and must give the same bits.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cases/cases.h"
#include "tests/gpu/gpu.h"
#include "tests/kernels/guarded_memory.h"

namespace lockstep::testing {

enum class Values { kGiven, kAbsolute };

// The arrays of one run, with guards.
class GuardedBench : public Bench {
 public:
  GuardedBench(Device& device, const KernelTable& kernels, DType type, Values values)
      : Bench(device, kernels, type), values_(values) {}
  ~GuardedBench() override;

  // The values of the outputs, in the order in which they were added. Fails the test if a guard was overwritten.
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
    Buffer memory;                        // empty if the array ends at a page without access
    std::optional<GuardedMemory> at_end;  // then it is here
    std::size_t offset, bytes, all_bytes;
    Index count;
    Read read;  // empty for an input

    std::byte* data() const { return at_end ? at_end->data() : memory.data(); }
  };
  bool ends_at_pages() const;
  static constexpr std::size_t kGuard = 64;
  static constexpr std::byte kPattern{0xA5};

  const Values values_;
  std::vector<Array> arrays_;
};

// Compares a device with the plain kernels: the CPU, the CUDA kernels on a GPU, or these as emulated_cuda/ runs them on
// the CPU, with the threads of a block in forward or backward order.
class ReferenceComparison : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override;
  // One bound per output, or one for all.
  void compare(const std::string& what, const std::vector<Bound>& bounds, const Work& work,
               DType type = DType::kFloat32);
  Device& device() { return *device_; }
  const KernelTable& kernels() { return *kernels_; }
  bool is_emulated() const { return GetParam().starts_with("emulated"); }

 private:
  Device* device_ = nullptr;
  const KernelTable* kernels_ = nullptr;
};

// A sanitizer is slow, and finds its errors in either order; ASan needs only one 16-bit type, and TSan, which looks for
// missing synchronisation, only one type.
#if defined(EMULATED_UNDER_TSAN)
#define LOCKSTEP_COMPARED_DEVICES "cpu", "cuda", "emulated_forwards"
inline constexpr DType kComparedTypes[] = {DType::kFloat32};
#elif defined(EMULATED_UNDER_ASAN)
#define LOCKSTEP_COMPARED_DEVICES "cpu", "cuda", "emulated_forwards"
inline constexpr DType kComparedTypes[] = {DType::kFloat32, DType::kBFloat16};
#else
#define LOCKSTEP_COMPARED_DEVICES "cpu", "cuda", "emulated_forwards", "emulated_backwards"
inline constexpr DType kComparedTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
#endif
#define LOCKSTEP_COMPARE_WITH_REFERENCE(suite)                                           \
  INSTANTIATE_TEST_SUITE_P(Devices, suite, ::testing::Values(LOCKSTEP_COMPARED_DEVICES), \
                           [](const auto& test) { return test.param; })

}  // namespace lockstep::testing
