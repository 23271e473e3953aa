// Sizes and paddings of sliding windows, as convolutions and pooling take them.
#pragma once

#include <array>
#include <cstdint>
#include <variant>

#pragma GCC visibility push(default)
namespace lockstep {

using Size2 = std::array<std::int64_t, 2>;  // height, width

// Zeros around an image, or -infinity for max pooling.
struct Padding {
  std::int64_t top = 0, left = 0, bottom = 0, right = 0;

  static Padding all(std::int64_t each) { return {each, each, each, each}; }
};
// TensorFlow's SAME: out = ceil(in / stride); total = max((out - 1) * stride + kernel - in, 0), the smaller half first.
struct Same {};
using PaddingRule = std::variant<Padding, Same>;

// The same along one dimension.
struct Padding1d {
  std::int64_t left = 0, right = 0;

  static Padding1d all(std::int64_t each) { return {each, each}; }
};
using PaddingRule1d = std::variant<Padding1d, Same>;

}  // namespace lockstep
#pragma GCC visibility pop
