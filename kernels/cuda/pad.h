// Copies images into larger ones with zeros around them, or back.
#pragma once

#include <cstdint>

#include "lockstep/core/view.h"

namespace lockstep {
class Stream;
}

namespace lockstep::cuda {

// out(row, column) = in(row - top, column - left), 0 if that lies outside; negative top and left crop.
struct ImageShift {
  std::int64_t batch, channels;
  std::int64_t in_height, in_width, out_height, out_width;
  std::int64_t top, left;
};
void shift_images(const ImageShift& shift, In in, Out out, Stream& stream);

}  // namespace lockstep::cuda
