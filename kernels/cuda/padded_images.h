// Images whose two sides are padded unlike, for cuDNN, which pads both alike.
#pragma once

#include <cstddef>

#include "kernels/cuda/pad.h"
#include "kernels/cuda/stream.h"
#include "lockstep/core/operator_shapes.h"

namespace lockstep::cuda {

inline Index size_of_x(const Conv2dShape& s) { return s.batch * s.in_height * s.in_width * s.in_channels; }

inline bool is_padded_unlike(const Conv2dShape& s) { return s.pad_top != s.pad_bottom || s.pad_left != s.pad_right; }
inline Conv2dShape padded(const Conv2dShape& s) {
  Conv2dShape p = s;
  p.in_height += s.pad_top + s.pad_bottom, p.in_width += s.pad_left + s.pad_right;
  p.pad_top = p.pad_left = p.pad_bottom = p.pad_right = 0;
  return p;
}

// x as cuDNN is to see it, for the length of an operator.
class PaddedImages {
 public:
  PaddedImages(DType type, const Conv2dShape& s, Stream& stream)
      : type_(type),
        shape_(s),
        padded_(padded(s)),
        stream_(stream),
        memory_(stream, static_cast<std::size_t>(size_of_x(padded_)) * size_of(type)) {}

  const Conv2dShape& shape() const { return padded_; }
  void* data() const { return memory_.as<void>(); }
  void put_in(const void* x) {
    shift_images(type_,
                 {shape_.batch, shape_.in_channels, shape_.in_height, shape_.in_width, padded_.in_height, padded_.in_width, shape_.pad_top,
                  shape_.pad_left},
                 x, data(), false, stream_);
  }
  void take_out(void* x, bool accumulate) {
    shift_images(type_,
                 {shape_.batch, shape_.in_channels, padded_.in_height, padded_.in_width, shape_.in_height, shape_.in_width, -shape_.pad_top,
                  -shape_.pad_left},
                 data(), x, accumulate, stream_);
  }

 private:
  DType type_;
  Conv2dShape shape_, padded_;
  Stream& stream_;
  Scratch memory_;
};

}  // namespace lockstep::cuda
