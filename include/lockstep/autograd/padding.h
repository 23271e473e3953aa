// Sizes and paddings of the sliding windows of convolutions and pooling.
#pragma once

#include <cstddef>
#include <cstdint>
#include <variant>

#pragma GCC visibility push(default)
namespace lockstep {

// Height and width. A single number is used for both: Conv2d(3, 16, 3) has 3 x 3 filters, {.stride = 2} moves by 2 in
// both directions.
struct Size2 {
  std::int64_t height = 0, width = 0;

  constexpr Size2() = default;
  constexpr Size2(std::int64_t both) : height(both), width(both) {}
  constexpr Size2(std::int64_t of_rows, std::int64_t of_columns) : height(of_rows), width(of_columns) {}
  constexpr std::int64_t& operator[](std::size_t axis) { return axis == 0 ? height : width; }  // 0: height, 1: width
  constexpr std::int64_t operator[](std::size_t axis) const { return axis == 0 ? height : width; }
  friend constexpr bool operator==(const Size2&, const Size2&) = default;
};

// Zeros around an image, or -infinity for max pooling. As in PyTorch's `padding`, one number pads all four sides and
// two numbers pad (top and bottom, left and right); four numbers give each side.
struct Padding {
  std::int64_t top = 0, left = 0, bottom = 0, right = 0;

  constexpr Padding() = default;
  constexpr Padding(std::int64_t each) : Padding(each, each) {}
  constexpr Padding(std::int64_t vertical, std::int64_t horizontal)
      : Padding(vertical, horizontal, vertical, horizontal) {}
  constexpr Padding(std::int64_t at_top, std::int64_t at_left, std::int64_t at_bottom, std::int64_t at_right)
      : top(at_top), left(at_left), bottom(at_bottom), right(at_right) {}
  static constexpr Padding all(std::int64_t each) { return {each}; }
};
// TensorFlow's SAME: out = ceil(in / stride); total = max((out - 1) * stride + kernel - in, 0), with the smaller half
// first.
struct Same {};
// Either kind of padding, for use in options: `.padding = 1`, `.padding = {1, 2}`, `.padding = Same{}`.
struct PaddingRule : std::variant<Padding, Same> {
  using variant::variant;
  constexpr PaddingRule(std::int64_t vertical, std::int64_t horizontal) : variant(Padding(vertical, horizontal)) {}
  constexpr PaddingRule(std::int64_t at_top, std::int64_t at_left, std::int64_t at_bottom, std::int64_t at_right)
      : variant(Padding(at_top, at_left, at_bottom, at_right)) {}
};

// Padding of a sequence: one number pads both ends.
struct Padding1d {
  std::int64_t left = 0, right = 0;

  constexpr Padding1d() = default;
  constexpr Padding1d(std::int64_t each) : Padding1d(each, each) {}
  constexpr Padding1d(std::int64_t at_left, std::int64_t at_right) : left(at_left), right(at_right) {}
  static constexpr Padding1d all(std::int64_t each) { return {each}; }
};
struct PaddingRule1d : std::variant<Padding1d, Same> {
  using variant::variant;
  constexpr PaddingRule1d(std::int64_t at_left, std::int64_t at_right) : variant(Padding1d(at_left, at_right)) {}
};

}  // namespace lockstep
#pragma GCC visibility pop
