// Common parts of the kernels of pooling and convolution: positions of elements, and the windows that contain them.
#pragma once

#include "kernels/cuda/fast_division.cuh"
#include "lockstep/core/operator_shapes.h"

namespace lockstep::cuda {

// The position of an item of an NHWC tensor; an item is one channel of a pixel, or a pack of adjacent ones.
template <typename Number> struct Position { Number image, row, column, item; };

// The extents of an NHWC tensor.
template <typename Number> struct Extents {
  Extents(Index height, Index width, Index items_of_pixel)
      : height(height), width(width), items_of_pixel(items_of_pixel) {}
  // The position of a pixel, counted in the same order.
  __device__ Position<Number> position_of_pixel(Number pixel) const {
    const Divided<Number> line = width.divide(pixel), image = height.divide(line.quotient);
    return {image.quotient, image.remainder, line.remainder, 0};
  }
  __device__ Position<Number> position_of(Number i) const {
    const Divided<Number> pixel = items_of_pixel.divide(i);
    Position<Number> position = position_of_pixel(pixel.quotient);
    position.item = pixel.remainder;
    return position;
  }
  __device__ Number item_at(const Position<Number>& at) const {
    return ((at.image * height.value() + at.row) * width.value() + at.column) * items_of_pixel.value() + at.item;
  }
  Divisor<Number> height, width, items_of_pixel;
};

// The windows of one direction.
template <typename Number> class AnyWindow {
 public:
  AnyWindow(Index size, Index stride) : size_(static_cast<Number>(size)), stride_(stride) {}
  __device__ Number size() const { return size_; }
  __device__ Number stride() const { return stride_.value(); }
  __device__ Number by_stride(Number at) const { return stride_.quotient(at); }
  // A bound for the number of windows that contain an input, which is `count`.
  __device__ Number most(Number count) const { return count; }

 private:
  Number size_;
  Divisor<Number> stride_;
};

// Windows that are known at compile time, so that loops over them are unrolled and divisions are shifts.
template <ShortIndex of, ShortIndex by> class FixedWindow {
 public:
  FixedWindow(Index, Index) {}
  __device__ static ShortIndex size() { return of; }
  __device__ static ShortIndex stride() { return by; }
  __device__ static ShortIndex by_stride(ShortIndex at) {
    return static_cast<ShortIndex>(static_cast<std::uint32_t>(at) / by);
  }
  __device__ static ShortIndex most(ShortIndex) { return (of + by - 1) / by; }
};

// One direction, rows or columns.
template <typename Number, typename Window> struct Direction {
  struct Range {
    Number begin, end;
  };
  // The outputs whose windows contain input `at`.
  __device__ Range outputs_of(Number at) const {
    const Number from = at + pad;
    return {from < window.size() ? 0 : window.by_stride(from - window.size()) + 1,
            min(window.by_stride(from), out - 1) + 1};
  }
  // The first input of output `at`, which may lie in the padding.
  __device__ Number begin_of(Number at) const { return at * window.stride() - pad; }
  __device__ bool is_inside(Number at) const { return at >= 0 && at < in; }

  Number in, out, pad;
  Window window;
};

// Images, the outputs of windows over them, and the windows. For pooling an item is a pack of channels.
template <typename Of, typename Window> struct Windows {
  using Number = Of;

  Windows(const Pool2dShape& s, Index pack)
      : in(s.in_height, s.in_width, s.channels / pack),
        out(s.out_height, s.out_width, s.channels / pack),
        rows{static_cast<Number>(s.in_height), static_cast<Number>(s.out_height), static_cast<Number>(s.pad_top),
             Window(s.window_height, s.stride_height)},
        columns{static_cast<Number>(s.in_width), static_cast<Number>(s.out_width), static_cast<Number>(s.pad_left),
                Window(s.window_width, s.stride_width)} {}
  explicit Windows(const Conv2dShape& s)
      : in(s.in_height, s.in_width, s.in_channels),
        out(s.out_height, s.out_width, s.out_channels),
        rows{static_cast<Number>(s.in_height), static_cast<Number>(s.out_height), static_cast<Number>(s.pad_top),
             Window(s.kernel_height, s.stride_height)},
        columns{static_cast<Number>(s.in_width), static_cast<Number>(s.out_width), static_cast<Number>(s.pad_left),
                Window(s.kernel_width, s.stride_width)} {}

  Extents<Number> in, out;
  Direction<Number, Window> rows, columns;
};
template <typename Number> using AnyWindows = Windows<Number, AnyWindow<Number>>;

// The largest number that a kernel computes for a shape whose arrays have up to `elements` elements.
inline Index largest_number(const Pool2dShape& s, Index elements) {
  return std::max({elements, s.in_height + s.pad_top + s.pad_bottom + s.window_height,
                   s.in_width + s.pad_left + s.pad_right + s.window_width, s.stride_height, s.stride_width});
}
inline Index largest_number(const Conv2dShape& s, Index elements) {
  return std::max({elements, s.in_height + s.pad_top + s.pad_bottom + s.kernel_height,
                   s.in_width + s.pad_left + s.pad_right + s.kernel_width, s.stride_height, s.stride_width});
}

}  // namespace lockstep::cuda
