// Max pooling, vectorised along the channels. Forward keeps the maxima of one output pixel in registers (AVX-512) or
// the first-level cache while it walks the window. Backward loops over the input: each pixel checks the few windows
// that contain it and adds the gradients of those where it was the maximum, so memory is written once and in order.
#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/cpu/fast.h"
#include "kernels/cpu/windows.h"
#include "lockstep/core/cpu_dispatch.h"

#if defined(__x86_64__)
#include "kernels/cpu/pool_avx512.h"
#endif

namespace lockstep::fast {

namespace {

constexpr Index kTile = 64;  // channels at a time

// The first of equal values is chosen; NaN is larger than any number.
LOCKSTEP_CPU_DISPATCH(void, pool_pixel, (const PoolWindow& window, float* y, std::uint16_t* argmax),
                      (window, y, argmax), {
                        const Index channels = window.channels;
                        for (Index tile = 0; tile < channels; tile += kTile) {
                          const Index width = channels - tile < kTile ? channels - tile : kTile;
                          float best[kTile];
                          std::int32_t winner[kTile];
                          for (Index c = 0; c < kTile; ++c) {
                            best[c] = -std::numeric_limits<float>::infinity();
                            winner[c] = window.place;
                          }
                          for (Index r = 0; r < window.rows; ++r)
                            for (Index s = 0; s < window.columns; ++s) {
                              const float* tap = window.x + r * window.row_step + s * channels + tile;
                              const auto here = static_cast<std::int32_t>(window.place + r * window.width + s);
                              LOCKSTEP_INDEPENDENT_ITERATIONS
                              for (Index c = 0; c < width; ++c) {
                                const float value = tap[c];
                                const bool wins = (value > best[c]) | (value != value);
                                winner[c] = wins ? here : winner[c];
                                best[c] = wins ? value : best[c];
                              }
                            }
                          for (Index c = 0; c < width; ++c) y[tile + c] = best[c];
                          for (Index c = 0; c < width; ++c) argmax[tile + c] = static_cast<std::uint16_t>(winner[c]);
                        }
                      })

// x_grad += y_grad where the window's maximum is at `place`.
LOCKSTEP_CPU_DISPATCH(void, take_gradients,
                      (const float* y_grad, const std::uint16_t* argmax, int place, Index channels, float* x_grad),
                      (y_grad, argmax, place, channels, x_grad), {
                        LOCKSTEP_INDEPENDENT_ITERATIONS
                        for (Index c = 0; c < channels; ++c) {
                          const float sum = x_grad[c] + y_grad[c];
                          x_grad[c] = argmax[c] == place ? sum : x_grad[c];
                        }
                      })

void take_pixel(const PoolCover& cover, bool accumulate, float* x_grad) {
  if (!accumulate) std::fill_n(x_grad, cover.channels, 0.0F);
  for (Index i = 0; i < cover.rows; ++i)
    for (Index j = 0; j < cover.columns; ++j) {
      const Index at = i * cover.row_step + j * cover.channels;
      const int place = cover.place - static_cast<int>(i) * cover.place_row - static_cast<int>(j) * cover.place_column;
      take_gradients(cover.y_grad + at, cover.argmax + at, place, cover.channels, x_grad);
    }
}

using PoolPixel = void (*)(const PoolWindow& window, float* y, std::uint16_t* argmax);
using TakePixel = void (*)(const PoolCover& cover, bool accumulate, float* x_grad);

#if defined(__x86_64__)
PoolPixel fastest_pool_pixel() { return cpu_isa() >= Isa::kAvx512 ? avx512::pool_pixel : pool_pixel; }
TakePixel fastest_take_pixel() { return cpu_isa() >= Isa::kAvx512 ? avx512::take_pixel : take_pixel; }
#else
PoolPixel fastest_pool_pixel() { return pool_pixel; }
TakePixel fastest_take_pixel() { return take_pixel; }
#endif

void max_pool2d(const Pool2dShape& s, In in, Out out, std::uint16_t* argmax, Stream&) {
  const float* x = in.floats();
  float* y = out.floats();
  const Index row_step = s.in_width * s.channels;
  const PoolPixel pool = fastest_pool_pixel();
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
  const TakePixel take = fastest_take_pixel();
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
