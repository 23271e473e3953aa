// A tensor's extents: up to six, row-major, the last one contiguous.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#pragma GCC visibility push(default)
namespace lockstep {

class Shape {
 public:
  static constexpr std::size_t kMaxDims = 6;

  Shape() = default;  // a scalar
  Shape(std::initializer_list<std::int64_t> extents) : Shape(std::span(extents.begin(), extents.size())) {}
  explicit Shape(std::span<const std::int64_t> extents);  // throws InvalidArgument: too many, or a negative one

  std::size_t dims() const { return dims_; }
  // A negative dimension counts from the end: shape[-1] is the last. Throws InvalidArgument if the dimension does not
  // exist.
  std::int64_t operator[](std::int64_t dim) const {
    const auto at = static_cast<std::size_t>(dim < 0 ? dim + static_cast<std::int64_t>(dims_) : dim);
    if (at >= dims_) [[unlikely]]
      refuse_dimension(dim);
    return extents_[at];
  }
  std::int64_t count() const;  // product; 1 for a scalar. Throws InvalidArgument on overflow
  std::span<const std::int64_t> extents() const { return {extents_.data(), dims_}; }
  std::string text() const;  // "(128, 24, 24, 3)"

  bool operator==(const Shape&) const = default;

 private:
  [[noreturn]] void refuse_dimension(std::int64_t dim) const;

  std::array<std::int64_t, kMaxDims> extents_{};
  std::size_t dims_ = 0;
};

}  // namespace lockstep
#pragma GCC visibility pop
