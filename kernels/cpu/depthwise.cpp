// Weights (C, taps) are transposed to (taps, C) first.
#include "kernels/cpu/depthwise.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/depthwise_rows.h"
#include "src/core/process/compute_threads.h"

namespace lockstep::depthwise {

namespace {

// The initial value of outputs, and the operations on them before they are stored.
struct Finish {
  const float* bias;  // null: no bias
  bool relu, accumulate;
};

// One output pixel: the sum over the `rows` x `columns` taps that begin at x; the rows of the weights are
// `window_width` taps apart.
LOCKSTEP_CPU_DISPATCH(void, convolve_pixel,
                      (const float* x, Index rows, Index columns, Index row_step, const float* weights,
                       Index window_width, const Finish& finish, Index channels, float* y),
                      (x, rows, columns, row_step, weights, window_width, finish, channels, y), {
                        if (!finish.accumulate)
                          for (Index c = 0; c < channels; ++c) y[c] = finish.bias == nullptr ? 0 : finish.bias[c];
                        for (Index r = 0; r < rows; ++r) {
                          Index s = 0;
                          for (; s + 3 <= columns; s += 3) {
                            const float* const pixel = x + r * row_step + s * channels;
                            const float* const taps = weights + (r * window_width + s) * channels;
                            LOCKSTEP_INDEPENDENT_ITERATIONS
                            for (Index c = 0; c < channels; ++c) {
                              float sum = y[c] + pixel[c] * taps[c];
                              sum += pixel[channels + c] * taps[channels + c];
                              y[c] = sum + pixel[2 * channels + c] * taps[2 * channels + c];
                            }
                          }
                          for (; s < columns; ++s) {
                            const float* const pixel = x + r * row_step + s * channels;
                            const float* const taps = weights + (r * window_width + s) * channels;
                            LOCKSTEP_INDEPENDENT_ITERATIONS
                            for (Index c = 0; c < channels; ++c) y[c] += pixel[c] * taps[c];
                          }
                        }
                        if (finish.relu)
                          for (Index c = 0; c < channels; ++c) y[c] = y[c] < 0 ? 0 : y[c];
                      })

// Four adjacent pixels, sixteen channels each. They are separate members, because compilers keep arrays of vectors in
// memory.
struct PixelSums {
  EightFloats a0{}, a1{}, b0{}, b1{}, c0{}, c1{}, d0{}, d1{};
};

LOCKSTEP_ALWAYS_INLINE void load_pixel(const float* from, EightFloats& low, EightFloats& high) {
  load(from, low);
  load(from + kVector, high);
}
LOCKSTEP_ALWAYS_INLINE void save_pixel(const EightFloats& low, const EightFloats& high, bool relu, float* to) {
  const EightFloats zero{}, first = relu ? (low < 0 ? zero : low) : low,
                            second = relu ? (high < 0 ? zero : high) : high;
  std::memcpy(to, &first, sizeof first);
  std::memcpy(to + kVector, &second, sizeof second);
}
LOCKSTEP_ALWAYS_INLINE void add_products_of_pixel(const float* x, const EightFloats& low, const EightFloats& high,
                                                  EightFloats& low_sum, EightFloats& high_sum) {
  EightFloats first, second;
  load_pixel(x, first, second);
  low_sum += first * low;
  high_sum += second * high;
}

// kPixelsAtOnce adjacent output pixels with the same taps, all inside the image; their inputs are `step` apart. Each
// weight is read once for all of them, and sums stay in registers: `channels` is a multiple of kChannelsAtOnce.
LOCKSTEP_CPU_DISPATCH(void, convolve_pixels,
                      (const float* x, Index rows, Index columns, Index row_step, Index step, const float* weights,
                       Index window_width, const Finish& finish, Index channels, float* y),
                      (x, rows, columns, row_step, step, weights, window_width, finish, channels, y), {
                        for (Index c = 0; c < channels; c += kChannelsAtOnce) {
                          float* const to = y + c;
                          // Prefetch the next pixels' inputs and outputs, which are too far apart for the processor to
                          // see the pattern.
                          const float* const next = x + (rows - 1) * row_step + columns * channels + 3 * step + c;
                          for (Index p = 0; p < kPixelsAtOnce; ++p) {
                            __builtin_prefetch(next + p * step);
                            __builtin_prefetch(to + (kPixelsAtOnce + p) * channels, 1);
                          }
                          PixelSums sums;
                          if (finish.accumulate) {
                            load_pixel(to, sums.a0, sums.a1);
                            load_pixel(to + channels, sums.b0, sums.b1);
                            load_pixel(to + 2 * channels, sums.c0, sums.c1);
                            load_pixel(to + 3 * channels, sums.d0, sums.d1);
                          } else if (finish.bias != nullptr) {
                            load_pixel(finish.bias + c, sums.a0, sums.a1);
                            sums.b0 = sums.c0 = sums.d0 = sums.a0;
                            sums.b1 = sums.c1 = sums.d1 = sums.a1;
                          }
                          for (Index r = 0; r < rows; ++r)
                            for (Index s = 0; s < columns; ++s) {
                              const float* const from = x + r * row_step + s * channels + c;
                              EightFloats low, high;
                              load_pixel(weights + (r * window_width + s) * channels + c, low, high);
                              add_products_of_pixel(from, low, high, sums.a0, sums.a1);
                              add_products_of_pixel(from + step, low, high, sums.b0, sums.b1);
                              add_products_of_pixel(from + 2 * step, low, high, sums.c0, sums.c1);
                              add_products_of_pixel(from + 3 * step, low, high, sums.d0, sums.d1);
                            }
                          save_pixel(sums.a0, sums.a1, finish.relu, to);
                          save_pixel(sums.b0, sums.b1, finish.relu, to + channels);
                          save_pixel(sums.c0, sums.c1, finish.relu, to + 2 * channels);
                          save_pixel(sums.d0, sums.d1, finish.relu, to + 3 * channels);
                        }
                      })

LOCKSTEP_CPU_DISPATCH(void, add_products, (const float* a, const float* b, Index count, float* sums),
                      (a, b, count, sums), {
                        LOCKSTEP_INDEPENDENT_ITERATIONS
                        for (Index i = 0; i < count; ++i) sums[i] += a[i] * b[i];
                      })

std::vector<float> by_taps(const Conv2dShape& s, const float* weight) {
  const Index taps = taps_of(s), channels = s.in_channels;
  std::vector<float> turned(static_cast<std::size_t>(taps * channels));
  for (Index c = 0; c < channels; ++c)
    for (Index tap = 0; tap < taps; ++tap)
      turned[static_cast<std::size_t>(tap * channels + c)] = weight[c * taps + tap];
  return turned;
}

Taps columns_of(const Conv2dShape& s, Index j) {
  return taps_inside(j, s.stride_width, s.pad_left, s.kernel_width, s.in_width);
}

#if defined(__x86_64__)
void convolve_by_rows(const Conv2dShape& s, const float* x, const float* weights, const Finish& finish, float* y) {
  for (Index i = 0; i < s.out_height; ++i, y += s.out_width * s.in_channels) {
    const Taps rows = rows_of(s, i);
    const Index count = std::max<Index>(rows.end - rows.first, 0);
    const auto convolve = count == 3   ? convolve_row<3>
                          : count == 2 ? convolve_row<2>
                          : count == 1 ? convolve_row<1>
                                       : convolve_row<0>;
    convolve(rows_under(s, x, rows), weights, finish.bias, finish.relu, finish.accumulate, y);
  }
}
#endif

void convolve_image(const Conv2dShape& s, const float* x, const float* weights, const Finish& finish, float* y) {
#if defined(__x86_64__)
  if (has_avx512_form(s) && s.in_channels % kLanes == 0) return convolve_by_rows(s, x, weights, finish, y);
#endif
  const Index channels = s.in_channels, row_step = s.in_width * channels;
  const bool by_registers = cpu_isa() != Isa::kBaseline && channels % kChannelsAtOnce == 0;
  const auto has_all_columns = [&s](Index j) {
    const Index start = j * s.stride_width - s.pad_left;
    return start >= 0 && start + s.kernel_width <= s.in_width;
  };
  for (Index i = 0; i < s.out_height; ++i) {
    const Taps rows = rows_of(s, i);
    for (Index j = 0, together = 1; j < s.out_width; j += together, y += together * channels) {
      const Taps columns = columns_of(s, j);
      const bool is_outside = rows.end <= rows.first || columns.end <= columns.first;
      const Index pixel = is_outside ? 0 : rows.input * row_step + columns.input * channels;
      const Index tap = is_outside ? 0 : rows.first * s.kernel_width + columns.first;
      const Index last = j + kPixelsAtOnce - 1;
      together = by_registers && !is_outside && last < s.out_width && has_all_columns(j) && has_all_columns(last)
                     ? kPixelsAtOnce
                     : 1;
      if (together == kPixelsAtOnce)
        convolve_pixels(x + pixel, rows.end - rows.first, s.kernel_width, row_step, s.stride_width * channels,
                        weights + tap * channels, s.kernel_width, finish, channels, y);
      else
        convolve_pixel(x + pixel, is_outside ? 0 : rows.end - rows.first, columns.end - columns.first, row_step,
                       weights + tap * channels, s.kernel_width, finish, channels, y);
    }
  }
}

// With stride 1, the gradient of the input is the convolution of the output's gradient with the reversed window.
Conv2dShape turned_round(const Conv2dShape& s) {
  Conv2dShape turned = s;
  std::swap(turned.in_height, turned.out_height);
  std::swap(turned.in_width, turned.out_width);
  turned.pad_top = s.kernel_height - 1 - s.pad_top;
  turned.pad_left = s.kernel_width - 1 - s.pad_left;
  return turned;
}
std::vector<float> turned_round(const std::vector<float>& weights, Index channels) {
  std::vector<float> turned(weights.size());
  const Index taps = std::ssize(weights) / channels;
  for (Index tap = 0; tap < taps; ++tap)
    std::copy_n(weights.data() + tap * channels, channels, turned.data() + (taps - 1 - tap) * channels);
  return turned;
}

void gather_image_gradient(const Conv2dShape& s, const float* y_grad, const float* weights, bool accumulate,
                           float* x_grad) {
  const Index channels = s.in_channels;
  for (Index row = 0; row < s.in_height; ++row) {
    const Cover rows = windows_over(row, s.stride_height, s.pad_top, s.kernel_height, s.out_height);
    for (Index column = 0; column < s.in_width; ++column, x_grad += channels) {
      const Cover columns = windows_over(column, s.stride_width, s.pad_left, s.kernel_width, s.out_width);
      if (!accumulate) std::fill_n(x_grad, channels, 0.0F);
      for (Index i = rows.first; i < rows.end; ++i)
        for (Index j = columns.first; j < columns.end; ++j) {
          const Index tap =
              (row + s.pad_top - i * s.stride_height) * s.kernel_width + column + s.pad_left - j * s.stride_width;
          add_products(y_grad + (i * s.out_width + j) * channels, weights + tap * channels, channels, x_grad);
        }
    }
  }
}

}  // namespace

bool suits(const Conv2dShape& s) {
  return s.groups > 1 && s.groups == s.in_channels && s.groups == s.out_channels &&
         s.batch * s.out_height * s.out_width > 0;
}

void conv2d(const Conv2dShape& s, const float* x, const float* weight, const float* bias, bool relu, float* y) {
  const std::vector<float> weights = by_taps(s, weight);
  const Index of_x = s.in_height * s.in_width * s.in_channels, of_y = s.out_height * s.out_width * s.out_channels;
  in_parallel(s.batch, [&](Index n) {
    convolve_image(s, x + n * of_x, weights.data(), {bias, relu, false}, y + n * of_y);
  });
}

void conv2d_backward_data(const Conv2dShape& s, const float* y_grad, const float* weight, float* x_grad,
                          bool accumulate) {
  const std::vector<float> weights = by_taps(s, weight);
  const Index of_x = s.in_height * s.in_width * s.in_channels, of_y = s.out_height * s.out_width * s.out_channels;
  if (s.stride_height == 1 && s.stride_width == 1) {
    const Conv2dShape turned = turned_round(s);
    const std::vector<float> turned_weights = turned_round(weights, s.in_channels);
    return in_parallel(s.batch, [&](Index n) {
      convolve_image(turned, y_grad + n * of_y, turned_weights.data(), {nullptr, false, accumulate}, x_grad + n * of_x);
    });
  }
  in_parallel(s.batch, [&](Index n) {
    gather_image_gradient(s, y_grad + n * of_y, weights.data(), accumulate, x_grad + n * of_x);
  });
}

}  // namespace lockstep::depthwise
