// Memory that ends at a page without access: a kernel that reads or writes beyond an array's end crashes.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "kernels/cpu/math/any_float.h"
#include "lockstep/core/error.h"

namespace lockstep::testing {

class GuardedMemory {
 public:
  explicit GuardedMemory(std::size_t bytes) : bytes_((bytes + kPage - 1) / kPage * kPage) {
    std::vector<std::byte*>& free = free_of(bytes_);
    if (free.empty()) {
      first_ = mapped(bytes_);
    } else {
      first_ = free.back();
      free.pop_back();
    }
    data_ = first_ + bytes_ - bytes;
  }
  // Memory is used again, because the system needs longer for a mapping than most kernels for an array.
  ~GuardedMemory() {
    if (first_ != nullptr) free_of(bytes_).push_back(first_);
  }
  GuardedMemory(GuardedMemory&& other) noexcept
      : bytes_(other.bytes_), first_(std::exchange(other.first_, nullptr)), data_(other.data_) {}
  GuardedMemory& operator=(GuardedMemory&&) = delete;

  std::byte* data() const { return data_; }

 private:
  static constexpr std::size_t kPage = 4096;

  static std::vector<std::byte*>& free_of(std::size_t bytes) {
    static auto* const free = new std::map<std::size_t, std::vector<std::byte*>>;  // lives as long as any array
    return (*free)[bytes];
  }
  static std::byte* mapped(std::size_t bytes) {
    void* const memory = mmap(nullptr, bytes + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw Error("no memory for an array of {} bytes", bytes);
    auto* const first = static_cast<std::byte*>(memory);
    if (mprotect(first + bytes, kPage, PROT_NONE) != 0) throw Error("a page after an array cannot be protected");
    return first;
  }

  std::size_t bytes_;  // whole pages
  std::byte *first_ = nullptr, *data_ = nullptr;
};

// An array of floats in such memory.
class GuardedFloats {
 public:
  explicit GuardedFloats(std::span<const float> values) : count_(values.size()), memory_(values.size_bytes()) {
    std::copy(values.begin(), values.end(), data());
  }
  float* data() const { return reinterpret_cast<float*>(memory_.data()); }
  std::vector<float> copy() const { return {data(), data() + count_}; }

 private:
  std::size_t count_;
  GuardedMemory memory_;
};

// The floats as 16-bit floats in such memory.
class GuardedHalves {
 public:
  GuardedHalves(DType type, std::span<const float> values) : memory_(values.size() * sizeof(std::uint16_t)) {
    narrow(type, values.data(), memory_.data(), static_cast<std::int64_t>(values.size()));
  }
  void* data() const { return memory_.data(); }

 private:
  GuardedMemory memory_;
};

}  // namespace lockstep::testing
