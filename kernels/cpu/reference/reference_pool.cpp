// Max pooling and average pooling.
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/reference/reference.h"

namespace lockstep::reference {

// -- max pooling

// Padding counts as -infinity and is never chosen; among equal values the first in row-major order is
// chosen; NaN is larger than any number.

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

// -- average pooling

// y = sum of the window's pixels inside the image / divisor; a pixel's gradient is the sum of y_grad /
// divisor over the windows that contain it.

namespace {

// Calls visit(index of the output's pixel, indices of the image's pixels, divisor) for each window.
template <typename Visit> void for_each_window(const Pool2dShape& s, bool count_padding, Visit&& visit) {
  Index out = 0;
  std::vector<Index> pixels;
  for (Index n = 0; n < s.batch; ++n)
    for (Index i = 0; i < s.out_height; ++i)
      for (Index j = 0; j < s.out_width; ++j, ++out) {
        pixels.clear();
        for (Index r = 0; r < s.window_height; ++r)
          for (Index c = 0; c < s.window_width; ++c) {
            const Index row = i * s.stride_height - s.pad_top + r, column = j * s.stride_width - s.pad_left + c;
            if (row >= 0 && row < s.in_height && column >= 0 && column < s.in_width)
              pixels.push_back((n * s.in_height + row) * s.in_width + column);
          }
        visit(
            out, pixels,
            static_cast<double>(count_padding ? s.window_height * s.window_width : static_cast<Index>(pixels.size())));
      }
}

void avg_pool2d(const Pool2dShape& s, bool count_padding, In x, Out y, Stream&) {
  for_each_window(s, count_padding, [&](Index out, const std::vector<Index>& pixels, double divisor) {
    for (Index c = 0; c < s.channels; ++c) {
      double sum = 0;
      for (const Index pixel : pixels) sum += x.floats()[pixel * s.channels + c];
      y.floats()[out * s.channels + c] = static_cast<float>(sum / divisor);
    }
  });
}

void avg_pool2d_backward(const Pool2dShape& s, bool count_padding, In y_grad, Out x_grad, Stream&) {
  std::vector<double> sums(static_cast<std::size_t>(x_grad.count()));
  for_each_window(s, count_padding, [&](Index out, const std::vector<Index>& pixels, double divisor) {
    for (Index c = 0; c < s.channels; ++c)
      for (const Index pixel : pixels)
        sums[static_cast<std::size_t>(pixel * s.channels + c)] += y_grad.floats()[out * s.channels + c] / divisor;
  });
  for (std::size_t i = 0; i < sums.size(); ++i) store(x_grad.floats()[i], sums[i], x_grad.accumulate);
}

}  // namespace

void use_avg_pool(KernelTable& table) {
  table.avg_pool2d = any_float<avg_pool2d>;
  table.avg_pool2d_backward = any_float<avg_pool2d_backward>;
}

}  // namespace lockstep::reference
