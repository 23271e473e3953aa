// Puts images into larger ones with zeros around them, or takes them out again.
#pragma once

#include <cstdint>

#include "lockstep/core/dtype.h"

namespace lockstep {
class Stream;
}

namespace lockstep::cuda {

// out(row, column) = in(row - top, column - left), 0 where that lies outside; top and left below 0 crop.
struct ImageShift {
  std::int64_t batch, channels;
  std::int64_t in_height, in_width, out_height, out_width;
  std::int64_t top, left;
};
void shift_images(DType type, const ImageShift& shift, const void* in, void* out, bool accumulate, Stream& stream);

}  // namespace lockstep::cuda
