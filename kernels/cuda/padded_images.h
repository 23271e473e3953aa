// Pads images explicitly whose two sides have different padding, because cuDNN pads both sides equally.
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

// The images x in the form that cuDNN reads, for the duration of an operator.
class PaddedImages {
 public:
  PaddedImages(DType type, const Conv2dShape& s, Stream& stream)
      : shape_(s),
        padded_(padded(s)),
        stream_(stream),
        memory_(stream, static_cast<std::size_t>(size_of_x(padded_)) * size_of(type)),
        view_(memory_.as<void>(), type, {padded_.batch, padded_.in_height, padded_.in_width, padded_.in_channels}) {}

  const Conv2dShape& shape() const { return padded_; }
  Out view() const { return view_; }
  void put_in(In x) {
    shift_images({shape_.batch, shape_.in_channels, shape_.in_height, shape_.in_width, padded_.in_height,
                  padded_.in_width, shape_.pad_top, shape_.pad_left},
                 x, view_, stream_);
  }
  void take_out(Out x) {
    shift_images({shape_.batch, shape_.in_channels, padded_.in_height, padded_.in_width, shape_.in_height,
                  shape_.in_width, -shape_.pad_top, -shape_.pad_left},
                 view_, x, stream_);
  }

 private:
  Conv2dShape shape_, padded_;
  Stream& stream_;
  Scratch memory_;
  OutputView view_;
};

}  // namespace lockstep::cuda
