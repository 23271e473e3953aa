// Average pooling, vectorised along the channels. Forward keeps the sums of one output pixel in registers while it
// walks the window; a large window is summed piece by piece in double, so that the error does not grow with the plane.
// Backward loops over the input: each pixel adds the gradients of the few windows that contain it, so memory is written
// once and in order.
#include <algorithm>
#include <vector>

#include "kernels/cpu/loops/fast.h"
#include "kernels/cpu/math/lanes.h"
#include "kernels/windows.h"
#include "lockstep/core/cpu_dispatch.h"

namespace lockstep::fast {

namespace {

// y = factor * sum of the `rows` x `columns` pixels from x on.
LOCKSTEP_CPU_DISPATCH(void, average_pixels,
                      (const float* x, Index rows, Index columns, Index row_step, float factor, Index channels,
                       float* y),
                      (x, rows, columns, row_step, factor, channels, y), {
                        Index c = 0;
                        Lanes part;
                        for (; c + 4 * kLanes <= channels; c += 4 * kLanes) {
                          Lanes sum0{}, sum1{}, sum2{}, sum3{};
                          for (Index r = 0; r < rows; ++r) {
                            const float* pixel = x + r * row_step + c;
                            for (Index s = 0; s < columns; ++s, pixel += channels) {
                              load(pixel, part);
                              sum0 += part;
                              load(pixel + kLanes, part);
                              sum1 += part;
                              load(pixel + 2 * kLanes, part);
                              sum2 += part;
                              load(pixel + 3 * kLanes, part);
                              sum3 += part;
                            }
                          }
                          save(sum0 * factor, y + c);
                          save(sum1 * factor, y + c + kLanes);
                          save(sum2 * factor, y + c + 2 * kLanes);
                          save(sum3 * factor, y + c + 3 * kLanes);
                        }
                        for (; c + kLanes <= channels; c += kLanes) {
                          Lanes sum{};
                          for (Index r = 0; r < rows; ++r) {
                            const float* pixel = x + r * row_step + c;
                            for (Index s = 0; s < columns; ++s, pixel += channels) {
                              load(pixel, part);
                              sum += part;
                            }
                          }
                          save(sum * factor, y + c);
                        }
                        for (; c < channels; ++c) {
                          float sum = 0;
                          for (Index r = 0; r < rows; ++r)
                            for (Index s = 0; s < columns; ++s) sum += x[r * row_step + s * channels + c];
                          y[c] = sum * factor;
                        }
                      })

LOCKSTEP_CPU_DISPATCH(void, add_average_gradient, (const float* y_grad, float factor, Index channels, float* x_grad),
                      (y_grad, factor, channels, x_grad), {
                        LOCKSTEP_INDEPENDENT_ITERATIONS
                        for (Index c = 0; c < channels; ++c) x_grad[c] += y_grad[c] * factor;
                      })

constexpr Index kMostInFloat = 64;  // windows of at most this many pixels are summed in float32

LOCKSTEP_CPU_DISPATCH(void, add_floats, (const float* x, Index count, double* sums), (x, count, sums), {
  LOCKSTEP_INDEPENDENT_ITERATIONS
  for (Index c = 0; c < count; ++c) sums[c] += static_cast<double>(x[c]);
})

// The same for a large window, in pieces.
void average_many_pixels(const float* x, Index rows, Index columns, Index row_step, double factor, Index channels,
                         float* y, std::vector<double>& sums) {
  const Index width = std::min(kMostInFloat, columns), height = kMostInFloat / width;
  sums.assign(static_cast<std::size_t>(channels), 0.0);
  for (Index r = 0; r < rows; r += height)
    for (Index s = 0; s < columns; s += width) {
      average_pixels(x + r * row_step + s * channels, std::min(height, rows - r), std::min(width, columns - s),
                     row_step, 1, channels, y);
      add_floats(y, channels, sums.data());
    }
  for (Index c = 0; c < channels; ++c) y[c] = static_cast<float>(sums[static_cast<std::size_t>(c)] * factor);
}

double counted_of(const Pool2dShape& s, bool count_padding, const Taps& rows, const Taps& columns) {
  return static_cast<double>(count_padding ? s.window_height * s.window_width
                                           : (rows.end - rows.first) * (columns.end - columns.first));
}
float factor_of(const Pool2dShape& s, bool count_padding, const Taps& rows, const Taps& columns) {
  return 1.0F / static_cast<float>(counted_of(s, count_padding, rows, columns));
}

Taps rows_of(const Pool2dShape& s, Index i) {
  return taps_inside(i, s.stride_height, s.pad_top, s.window_height, s.in_height);
}
Taps columns_of(const Pool2dShape& s, Index j) {
  return taps_inside(j, s.stride_width, s.pad_left, s.window_width, s.in_width);
}

void avg_pool2d(const Pool2dShape& s, bool count_padding, In in, Out out, Stream&) {
  const float* x = in.floats();
  float* y = out.floats();
  const Index row_step = s.in_width * s.channels;
  std::vector<double> sums;  // for large windows
  for (Index n = 0; n < s.batch; ++n, x += s.in_height * row_step)
    for (Index i = 0; i < s.out_height; ++i) {
      const Taps rows = rows_of(s, i);
      for (Index j = 0; j < s.out_width; ++j, y += s.channels) {
        const Taps columns = columns_of(s, j);
        const Index height = rows.end - rows.first, width = columns.end - columns.first;
        const float* const first = x + rows.input * row_step + columns.input * s.channels;
        if (height * width <= kMostInFloat)
          average_pixels(first, height, width, row_step, factor_of(s, count_padding, rows, columns), s.channels, y);
        else
          average_many_pixels(first, height, width, row_step, 1.0 / counted_of(s, count_padding, rows, columns),
                              s.channels, y, sums);
      }
    }
}

void avg_pool2d_backward(const Pool2dShape& s, bool count_padding, In out_grad, Out in_grad, Stream&) {
  const float* y_grad = out_grad.floats();
  float* x_grad = in_grad.floats();
  for (Index n = 0; n < s.batch; ++n, y_grad += s.out_height * s.out_width * s.channels)
    for (Index row = 0; row < s.in_height; ++row) {
      const Cover rows = windows_over(row, s.stride_height, s.pad_top, s.window_height, s.out_height);
      for (Index column = 0; column < s.in_width; ++column, x_grad += s.channels) {
        const Cover columns = windows_over(column, s.stride_width, s.pad_left, s.window_width, s.out_width);
        if (!in_grad.accumulate) std::fill_n(x_grad, s.channels, 0.0F);
        for (Index i = rows.first; i < rows.end; ++i)
          for (Index j = columns.first; j < columns.end; ++j)
            add_average_gradient(y_grad + (i * s.out_width + j) * s.channels,
                                 factor_of(s, count_padding, rows_of(s, i), columns_of(s, j)), s.channels, x_grad);
      }
    }
}

}  // namespace

void use_avg_pool(KernelTable& table) {
  table.avg_pool2d = any_float<avg_pool2d>;
  table.avg_pool2d_backward = any_float<avg_pool2d_backward>;
}

}  // namespace lockstep::fast
