// Max pooling, vectorised along the channels. Forward keeps the maxima of one output pixel in registers while it walks
// the window. Backward loops over the input: each pixel checks the few windows that contain it and adds the gradients of
// those where it was the maximum, so memory is written once and in order.
#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/cpu/loops/fast.h"
#include "kernels/cpu/simd/by_isa.h"
#include "kernels/cpu/simd/vector.h"
#include "kernels/windows.h"

#define LOCKSTEP_LOOPS "kernels/cpu/loops/pool_pixel.inc"
#include "kernels/cpu/simd/for_each_isa.h"

namespace lockstep::fast {

namespace {

void max_pool2d(const Pool2dShape& s, In in, Out out, std::uint16_t* argmax, Stream&) {
  const float* x = in.floats();
  float* y = out.floats();
  const Index row_step = s.in_width * s.channels;
  const auto pool = LOCKSTEP_BY_ISA(pool_pixel);
  for (Index n = 0; n < s.batch; ++n, x += s.in_height * row_step)
    for (Index i = 0; i < s.out_height; ++i) {
      const Taps rows = taps_inside(i, s.stride_height, s.pad_top, s.window_height, s.in_height);
      for (Index j = 0; j < s.out_width; ++j, y += s.channels, argmax += s.channels) {
        const Taps columns = taps_inside(j, s.stride_width, s.pad_left, s.window_width, s.in_width);
        const PoolWindow window{.x = x + rows.input * row_step + columns.input * s.channels,
                                .rows = rows.end - rows.first,
                                .columns = columns.end - columns.first,
                                .row_step = row_step,
                                .channels = s.channels,
                                .place = static_cast<int>(rows.first * s.window_width + columns.first),
                                .width = static_cast<int>(s.window_width)};
        pool(window, y, argmax);
      }
    }
}

// Row `row` of an image's gradient; covers[k] are the windows over its column k.
void gather_row(const Pool2dShape& s, Index row, const std::vector<Cover>& covers, const float* y_grad,
                const std::uint16_t* argmax, bool accumulate, float* x_grad) {
  const Cover rows = windows_over(row, s.stride_height, s.pad_top, s.window_height, s.out_height);
  const auto take = LOCKSTEP_BY_ISA(take_pixel);
  for (Index column = 0; column < s.in_width; ++column, x_grad += s.channels) {
    const Cover columns = covers[static_cast<std::size_t>(column)];
    const Index first = (rows.first * s.out_width + columns.first) * s.channels;
    const Index place_row = row + s.pad_top - rows.first * s.stride_height;
    const PoolCover cover{
        .y_grad = y_grad + first,
        .argmax = argmax + first,
        .rows = rows.end - rows.first,
        .columns = columns.end - columns.first,
        .row_step = s.out_width * s.channels,
        .channels = s.channels,
        .place = static_cast<int>(place_row * s.window_width + column + s.pad_left - columns.first * s.stride_width),
        .place_row = static_cast<int>(s.stride_height * s.window_width),
        .place_column = static_cast<int>(s.stride_width)};
    take(cover, accumulate, x_grad);
  }
}

void max_pool2d_backward(const Pool2dShape& s, In out_grad, const std::uint16_t* argmax, Out in_grad, Stream&) {
  const float* y_grad = out_grad.floats();
  float* x_grad = in_grad.floats();
  std::vector<Cover> covers;
  for (Index column = 0; column < s.in_width; ++column)
    covers.push_back(windows_over(column, s.stride_width, s.pad_left, s.window_width, s.out_width));
  const Index image = s.out_height * s.out_width * s.channels;
  for (Index n = 0; n < s.batch; ++n, y_grad += image, argmax += image)
    for (Index row = 0; row < s.in_height; ++row, x_grad += s.in_width * s.channels)
      gather_row(s, row, covers, y_grad, argmax, in_grad.accumulate, x_grad);
}

}  // namespace

void use_pool(KernelTable& table) {
  table.max_pool2d = any_float<max_pool2d>;
  table.max_pool2d_backward = any_float<max_pool2d_backward>;
}

}  // namespace lockstep::fast
