// Runs one kernel twice, as the plain CPU kernel and on the device under test, on the same values; and compares what they wrote.
//
// Every array lies between guards of a pattern, which no kernel may touch, and where the table promises no more, one element off its
// alignment. A third run of the plain kernel on absolute values tells how large the summed products are that a bound refers to.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "lockstep/core/device.h"
#include "tests/gpu/gpu.h"

namespace lockstep::testing {

using Index = std::int64_t;
using Floats = std::vector<float>;

inline Floats uniform(Index count, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> distribution(-1, 1);
  Floats values(static_cast<std::size_t>(count));
  for (float& value : values) value = distribution(random);
  return values;
}

// -3 .. 3: they collide often, which is what maxima are tried on.
inline Floats whole_numbers(Index count, unsigned seed) {
  std::mt19937 random(seed);
  Floats values(static_cast<std::size_t>(count));
  for (float& value : values) value = static_cast<float>(static_cast<int>(random() % 7) - 3);
  return values;
}

enum class Values { kGiven, kAbsolute };
enum class Place { kAligned, kOneElementOff };

// The arrays of one run, on the run's device. Valid while it lives.
class Bench {
 public:
  Bench(Device& device, const KernelTable& kernels, Values values) : kernels(kernels), device_(device), values_(values) {}
  ~Bench();
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  const KernelTable& kernels;
  Stream& stream() { return device_.default_stream(); }

  const float* in(Floats values, Place place = Place::kAligned) {
    return reinterpret_cast<float*>(add(as_bytes(chosen(std::move(values))), 4, place, {}));
  }
  float* out(Floats initial, Place place = Place::kAligned) {
    return reinterpret_cast<float*>(add(as_bytes(chosen(std::move(initial))), 4, place, [](const std::byte* bytes, Index count) {
      const auto* const floats = reinterpret_cast<const float*>(bytes);
      return Floats(floats, floats + count);
    }));
  }
  // Of 16-bit floats; rounded to them from `values`.
  const void* half_in(DType type, Floats values) { return add(narrowed(type, chosen(std::move(values))), 2, Place::kAligned, {}); }
  void* half_out(DType type, Floats initial) {
    return add(narrowed(type, chosen(std::move(initial))), 2, Place::kAligned,
               [type](const std::byte* bytes, Index count) { return widened(type, bytes, count); });
  }
  template <typename T>
  const T* plain_in(const std::vector<T>& values) {
    return reinterpret_cast<const T*>(add(as_bytes(values), sizeof(T), Place::kAligned, {}));
  }
  template <typename T>
  T* plain_out(const std::vector<T>& initial) {
    return reinterpret_cast<T*>(add(as_bytes(initial), sizeof(T), Place::kAligned, [](const std::byte* bytes, Index count) {
      const auto* const elements = reinterpret_cast<const T*>(bytes);
      return Floats(elements, elements + count);
    }));
  }

  // What the outputs hold, in the order in which they were added. Fails the test where a guard was written over.
  std::vector<Floats> results(const std::string& what);

  static Floats widened(DType type, const void* halves, Index count) {
    Floats floats(static_cast<std::size_t>(count));
    reference_kernels().mixed.convert(type, halves, DType::kFloat32, floats.data(), count, false, cpu_device().default_stream());
    return floats;
  }

 private:
  using Bytes = std::vector<std::byte>;
  using Read = std::function<Floats(const std::byte*, Index)>;
  struct Array {
    Buffer memory;
    std::size_t offset, bytes;
    Index count;
    Read read;  // empty: an input
  };
  static constexpr std::size_t kGuard = 64;
  static constexpr std::byte kPattern{0xA5};

  Floats chosen(Floats values) const {
    if (values_ == Values::kAbsolute)
      for (float& value : values) value = std::abs(value);
    return values;
  }
  template <typename T>
  static Bytes as_bytes(const std::vector<T>& values) {
    Bytes bytes(values.size() * sizeof(T));
    if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }
  static Bytes narrowed(DType type, const Floats& values) {
    Bytes bytes(values.size() * 2);
    reference_kernels().mixed.convert(DType::kFloat32, values.data(), type, bytes.data(), static_cast<Index>(values.size()), false,
                                      cpu_device().default_stream());
    return bytes;
  }
  std::byte* add(const Bytes& bytes, std::size_t element, Place place, Read read);

  Device& device_;
  const Values values_;
  std::vector<Array> arrays_;
};

// How far an element may be from the plain kernel's: `products` of the sum of absolute products (or whatever the kernel gives for absolute
// values), `value` of the value itself, `largest` of the largest expected one, and `absolute`.
struct Bound {
  float products = 0, value = 0, largest = 0, absolute = 0;
};
inline constexpr Bound kExact{};

using Work = std::function<void(Bench&)>;

// What is compared with the plain kernels: the CPU's, the CUDA kernels on a GPU, or as emulated_cuda/ runs them on the CPU, the threads of
// a block from the first to the last, or the other way round.
class TwinTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override;
  // One bound an output, or one for all.
  void compare(const std::string& what, const std::vector<Bound>& bounds, const Work& work);
  bool is_emulated() const { return GetParam().starts_with("emulated"); }

 private:
  Device* device_ = nullptr;
  const KernelTable* kernels_ = nullptr;
};

// ThreadSanitizer sees a race in either order, and is slow.
#ifdef EMULATED_UNDER_TSAN
#define LOCKSTEP_TWIN_KINDS "cpu", "cuda", "emulated_forwards"
#else
#define LOCKSTEP_TWIN_KINDS "cpu", "cuda", "emulated_forwards", "emulated_backwards"
#endif
#define LOCKSTEP_TWINS(suite) \
  INSTANTIATE_TEST_SUITE_P(Devices, suite, ::testing::Values(LOCKSTEP_TWIN_KINDS), [](const auto& test) { return test.param; })

}  // namespace lockstep::testing
