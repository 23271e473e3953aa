// Max pooling, vectors along the channels. Forward keeps the best values of one output pixel in the first-level cache
// while it walks the window. Backward asks from the input's side: each pixel looks at the few windows that cover it and
// takes the gradients that it won, so that memory is written once and in order.
#include <algorithm>
#include <limits>

#include "kernels/cpu/fast.h"
#include "lockstep/core/cpu_dispatch.h"

namespace lockstep::fast {

namespace {

constexpr Index kTile = 64;  // channels at a time

// The taps of a window that lie inside the image, in one direction.
struct Taps {
  Index first, end;  // within the window
  Index input;       // where the first one lies in the image
};

Taps taps_inside(Index out, Index stride, Index pad, Index window, Index size) {
  const Index start = out * stride - pad;
  const Index first = std::max<Index>(0, -start);
  return {first, std::min(window, size - start), start + first};
}

// One output pixel: the taps of `rows` x `columns` from x on; `place` is the first tap's.
LOCKSTEP_CPU_DISPATCH(void, pool_pixel,
                      (const float* x, Index rows, Index columns, Index row_step, int place, int window_width, Index channels, float* y,
                       std::uint16_t* argmax),
                      (x, rows, columns, row_step, place, window_width, channels, y, argmax), {
                        for (Index tile = 0; tile < channels; tile += kTile) {
                          const Index width = channels - tile < kTile ? channels - tile : kTile;
                          float best[kTile];
                          std::int32_t winner[kTile];
                          for (Index c = 0; c < kTile; ++c) {
                            best[c] = -std::numeric_limits<float>::infinity();
                            winner[c] = place;
                          }
                          for (Index r = 0; r < rows; ++r)
                            for (Index s = 0; s < columns; ++s) {
                              const float* tap = x + r * row_step + s * channels + tile;
                              const auto here = static_cast<std::int32_t>(place + r * window_width + s);
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

// x_grad += y_grad where the window's winner is `place`.
LOCKSTEP_CPU_DISPATCH(void, take_gradients, (const float* y_grad, const std::uint16_t* argmax, int place, Index channels, float* x_grad),
                      (y_grad, argmax, place, channels, x_grad), {
                        LOCKSTEP_INDEPENDENT_ITERATIONS
                        for (Index c = 0; c < channels; ++c) {
                          const float sum = x_grad[c] + y_grad[c];
                          x_grad[c] = argmax[c] == place ? sum : x_grad[c];
                        }
                      })

// The outputs whose windows cover input `in`, in one direction: [first, end).
struct Cover {
  Index first, end;
};

Cover windows_over(Index in, Index stride, Index pad, Index window, Index outputs) {
  const Index reach = in + pad - window;  // a window that starts here or before ends before `in`
  return {reach < 0 ? 0 : reach / stride + 1, std::min(outputs, (in + pad) / stride + 1)};
}

}  // namespace

void max_pool2d(const Pool2dShape& s, const float* x, float* y, std::uint16_t* argmax, Stream&) {
  const Index row_step = s.in_width * s.channels;
  for (Index n = 0; n < s.batch; ++n, x += s.in_height * row_step)
    for (Index i = 0; i < s.out_height; ++i) {
      const Taps rows = taps_inside(i, s.stride_height, s.pad_top, s.window_height, s.in_height);
      for (Index j = 0; j < s.out_width; ++j, y += s.channels, argmax += s.channels) {
        const Taps columns = taps_inside(j, s.stride_width, s.pad_left, s.window_width, s.in_width);
        const float* first = x + rows.input * row_step + columns.input * s.channels;
        pool_pixel(first, rows.end - rows.first, columns.end - columns.first, row_step,
                   static_cast<int>(rows.first * s.window_width + columns.first), static_cast<int>(s.window_width), s.channels, y, argmax);
      }
    }
}

void max_pool2d_backward(const Pool2dShape& s, const float* y_grad, const std::uint16_t* argmax, float* x_grad, bool accumulate, Stream&) {
  const Index image = s.out_height * s.out_width * s.channels;
  for (Index n = 0; n < s.batch; ++n, y_grad += image, argmax += image)
    for (Index row = 0; row < s.in_height; ++row) {
      const Cover rows = windows_over(row, s.stride_height, s.pad_top, s.window_height, s.out_height);
      for (Index column = 0; column < s.in_width; ++column, x_grad += s.channels) {
        const Cover columns = windows_over(column, s.stride_width, s.pad_left, s.window_width, s.out_width);
        if (!accumulate) std::fill_n(x_grad, s.channels, 0.0F);
        for (Index i = rows.first; i < rows.end; ++i)
          for (Index j = columns.first; j < columns.end; ++j) {
            const Index place = (row + s.pad_top - i * s.stride_height) * s.window_width + column + s.pad_left - j * s.stride_width;
            const Index at = (i * s.out_width + j) * s.channels;
            take_gradients(y_grad + at, argmax + at, static_cast<int>(place), s.channels, x_grad);
          }
      }
    }
}

}  // namespace lockstep::fast
