// Max pooling. Padding counts as -infinity and is never chosen; among equal values the first in row-major order is
// chosen; NaN is larger than any number.
#include <cmath>
#include <limits>

#include "kernels/cpu/reference.h"

namespace lockstep::reference {

namespace {

struct Winner {
  float value = -std::numeric_limits<float>::infinity();
  Index place = -1;
};

Winner winner_of(const Pool2dShape& shape, const float* image, Index i, Index j, Index c) {
  Winner winner;
  for (Index r = 0; r < shape.window_height; ++r) {
    const Index row = i * shape.stride_height - shape.pad_top + r;
    if (row < 0 || row >= shape.in_height) continue;
    for (Index s = 0; s < shape.window_width; ++s) {
      const Index column = j * shape.stride_width - shape.pad_left + s;
      if (column < 0 || column >= shape.in_width) continue;
      const float value = image[(row * shape.in_width + column) * shape.channels + c];
      if (winner.place < 0 || value > winner.value || std::isnan(value)) winner = {value, r * shape.window_width + s};
    }
  }
  return winner;
}

void max_pool2d(const Pool2dShape& shape, In x, Out y, std::uint16_t* argmax, Stream&) {
  const Index image = shape.in_height * shape.in_width * shape.channels;
  Index at = 0;
  for (Index n = 0; n < shape.batch; ++n)
    for (Index i = 0; i < shape.out_height; ++i)
      for (Index j = 0; j < shape.out_width; ++j)
        for (Index c = 0; c < shape.channels; ++c, ++at) {
          const Winner winner = winner_of(shape, x.floats() + n * image, i, j, c);
          y.floats()[at] = winner.value;
          argmax[at] = static_cast<std::uint16_t>(winner.place);
        }
}

void max_pool2d_backward(const Pool2dShape& shape, In y_grad, const std::uint16_t* argmax, Out x_grad, Stream&) {
  float* const to = x_grad.floats();
  const Index image = shape.in_height * shape.in_width * shape.channels;
  if (!x_grad.accumulate)
    for (Index i = 0; i < shape.batch * image; ++i) to[i] = 0;
  Index at = 0;
  for (Index n = 0; n < shape.batch; ++n)
    for (Index i = 0; i < shape.out_height; ++i)
      for (Index j = 0; j < shape.out_width; ++j)
        for (Index c = 0; c < shape.channels; ++c, ++at) {
          const Index row = i * shape.stride_height - shape.pad_top + argmax[at] / shape.window_width;
          const Index column = j * shape.stride_width - shape.pad_left + argmax[at] % shape.window_width;
          to[n * image + (row * shape.in_width + column) * shape.channels + c] += y_grad.floats()[at];
        }
}

}  // namespace

void use_pool(KernelTable& table) {
  table.max_pool2d = any_float<max_pool2d>;
  table.max_pool2d_backward = any_float<max_pool2d_backward>;
}

}  // namespace lockstep::reference
