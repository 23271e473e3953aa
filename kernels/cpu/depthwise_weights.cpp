// The gradient of the weights: about a hundred products are summed in float32, those sums in double, and the sums of a
// few parts of the batch, which threads share, in float32.
#include <algorithm>
#include <vector>

#include "kernels/cpu/depthwise.h"
#include "kernels/cpu/depthwise_rows.h"
#include "src/core/process/compute_threads.h"

namespace lockstep::depthwise {

namespace {

constexpr Index kFloatTerms = 256;                   // number of terms summed in float32
constexpr Index kImagesOfAPart = 8, kMostParts = 8;  // parts of the gradient; their number depends only on the batch

// sums += the products of `count` pixels, `a_step` and `b_step` apart.
LOCKSTEP_CPU_DISPATCH(void, add_products_of_pixels,
                      (const float* a, Index a_step, const float* b, Index b_step, Index count, Index channels,
                       float* sums),
                      (a, a_step, b, b_step, count, channels, sums), {
                        for (Index p = 0; p < count; ++p) {
                          const float* const from = a + p * a_step;
                          const float* const grad = b + p * b_step;
                          LOCKSTEP_INDEPENDENT_ITERATIONS
                          for (Index c = 0; c < channels; ++c) sums[c] += from[c] * grad[c];
                        }
                      })

// One row of the input and one of the output; `pixel`: floats from one pixel to the next in both. `next`: a row to
// prefetch.
struct RowPair {
  const float *x, *y_grad, *next;
  Index in_width, out_width, stride, pad, pixel;
};

// Adds the products of outputs [first, end) and the inputs under taps `tap` and following; kInside: all of these inputs
// are in the row.
template <bool kInside> LOCKSTEP_ALWAYS_INLINE void add_products_of_taps(const RowPair& row, Index tap, Index first,
                                                                         Index end,
                                                                         EightFloats (&sums)[kTapsAtOnce][kVectors]) {
  EightFloats x, grad[kVectors];
  for (Index j = first; j < end; ++j) {
    const Index column = j * row.stride - row.pad + tap;
    __builtin_prefetch(row.next + j * row.pixel);  // pixels are too far apart for the processor to see the pattern
    for (Index v = 0; v < kVectors; ++v) load(row.y_grad + j * row.pixel + v * kVector, grad[v]);
#pragma GCC unroll 3
    for (Index t = 0; t < kTapsAtOnce; ++t) {
      if (!kInside && (column + t < 0 || column + t >= row.in_width)) continue;
      for (Index v = 0; v < kVectors; ++v) {
        load(row.x + (column + t) * row.pixel + v * kVector, x);
        sums[t][v] += x * grad[v];
      }
    }
  }
}

// sums (taps, channels) += the products of kTapsAtOnce taps, for `whole` channels, a multiple of kChannelsAtOnce. For
// outputs [inner, outer) all these taps are inside.
LOCKSTEP_CPU_DISPATCH(void, add_taps,
                      (const RowPair& row, Index tap, Index inner, Index outer, Index whole, Index channels,
                       float* sums),
                      (row, tap, inner, outer, whole, channels, sums), {
                        RowPair at = row;
                        for (Index c = 0; c < whole; c += kChannelsAtOnce, at.x += kChannelsAtOnce,
                                   at.y_grad += kChannelsAtOnce, at.next += kChannelsAtOnce) {
                          EightFloats kept[kTapsAtOnce][kVectors];
                          for (Index t = 0; t < kTapsAtOnce; ++t)
                            for (Index v = 0; v < kVectors; ++v)
                              load(sums + t * channels + c + v * kVector, kept[t][v]);
                          add_products_of_taps<false>(at, tap, 0, inner, kept);
                          add_products_of_taps<true>(at, tap, inner, outer, kept);
                          add_products_of_taps<false>(at, tap, outer, row.out_width, kept);
                          for (Index t = 0; t < kTapsAtOnce; ++t)
                            for (Index v = 0; v < kVectors; ++v)
                              std::memcpy(sums + t * channels + c + v * kVector, &kept[t][v], sizeof kept[t][v]);
                        }
                      })

// The outputs whose tap `tap` lies inside the image, in one direction: [first, end).
Cover outputs_with(Index tap, Index stride, Index pad, Index size, Index outputs) {
  const Index least = pad - tap;  // minimum of output * stride
  const Index first = least <= 0 ? 0 : (least + stride - 1) / stride, room = size - 1 + pad - tap;
  return {first, room < 0 ? first : std::max(first, std::min(outputs, room / stride + 1))};
}

// Sums (taps, channels); `few` holds about the last kFloatTerms products.
class TapSums {
 public:
  explicit TapSums(Index count) : few_(static_cast<std::size_t>(count)), all_(static_cast<std::size_t>(count)) {}
  float* few() { return few_.data(); }
  void count(Index terms) {
    terms_ += terms;
    if (terms_ >= kFloatTerms) flush();
  }
  void write(float* to) {
    flush();
    for (const double sum : all_) *to++ = static_cast<float>(sum);
  }

 private:
  void flush() {
    for (std::size_t i = 0; i < few_.size(); ++i) all_[i] += few_[i];
    std::fill(few_.begin(), few_.end(), 0.0F);
    terms_ = 0;
  }

  std::vector<float> few_;
  std::vector<double> all_;
  Index terms_ = 0;
};

// Adds the products of one tap, for channels [first, channels).
void add_tap_gradient(const RowPair& row, Index tap, Index first, Index channels, float* sums) {
  const Cover outputs = outputs_with(tap, row.stride, row.pad, row.in_width, row.out_width);
  if (outputs.first >= outputs.end) return;
  const Index column = outputs.first * row.stride - row.pad + tap;
  add_products_of_pixels(row.x + column * row.pixel + first, row.stride * row.pixel,
                         row.y_grad + outputs.first * row.pixel + first, row.pixel, outputs.end - outputs.first,
                         channels - first, sums + first);
}

#if defined(__x86_64__)
// Adds the products of output row `i` of an image, as add_row_gradient() does.
void add_row_gradient_avx512(const Conv2dShape& s, const float* x, const float* y_grad, Index i, float* sums) {
  const Index channels = s.in_channels, whole = channels - channels % kLanes, row_step = s.in_width * channels;
  const Taps rows = rows_of(s, i);
  const Index count = rows.end - rows.first;
  if (count <= 0) return;
  const float* const gradients = y_grad + i * s.out_width * channels;
  const auto add = count == 3 ? add_row_products<3> : count == 2 ? add_row_products<2> : add_row_products<1>;
  add(rows_under(s, x, rows), gradients, whole, sums);
  for (Index r = 0; r < count && whole < channels; ++r) {
    const RowPair row{x + (rows.input + r) * row_step,
                      gradients,
                      gradients,
                      s.in_width,
                      s.out_width,
                      s.stride_width,
                      s.pad_left,
                      channels};
    for (Index t = 0; t < kWindow; ++t)
      add_tap_gradient(row, t, whole, channels, sums + ((rows.first + r) * kWindow + t) * channels);
  }
}
#endif

// Adds the products of output row `i` of an image.
void add_row_gradient(const Conv2dShape& s, const float* x, const float* y_grad, Index i, float* sums) {
#if defined(__x86_64__)
  if (has_avx512_form(s)) return add_row_gradient_avx512(s, x, y_grad, i, sums);
#endif
  const Index channels = s.in_channels;
  const Index row_of_x = s.in_width * channels, row_of_y = s.out_width * channels;
  const float* const next_y_grad = y_grad + std::min(i + 1, s.out_height - 1) * row_of_y;
  const float* const next_x = x + std::clamp<Index>((i + 1) * s.stride_height - s.pad_top + s.kernel_height - 1, 0,
                                                    std::max<Index>(s.in_height, 1) - 1) *
                                      row_of_x;
  // Without AVX, the sums of three taps would not fit into registers.
  const Index whole = cpu_isa() == Isa::kBaseline ? 0 : channels - channels % kChannelsAtOnce;
  for (Index r = 0; r < s.kernel_height; ++r, sums += s.kernel_width * channels) {
    const Index input = i * s.stride_height - s.pad_top + r;
    if (input < 0 || input >= s.in_height) continue;
    const RowPair row{x + input * row_of_x,
                      y_grad + i * row_of_y,
                      r == 0 ? next_y_grad : next_x,
                      s.in_width,
                      s.out_width,
                      s.stride_width,
                      s.pad_left,
                      channels};
    Index tap = 0;
    for (; tap + kTapsAtOnce <= s.kernel_width; tap += kTapsAtOnce) {
      const Cover of_first = outputs_with(tap, row.stride, row.pad, row.in_width, row.out_width);
      const Cover of_last = outputs_with(tap + kTapsAtOnce - 1, row.stride, row.pad, row.in_width, row.out_width);
      const Index inner = std::min(of_first.first, row.out_width),
                  outer = std::max(inner, std::min(of_last.end, row.out_width));
      if (whole > 0) add_taps(row, tap, inner, outer, whole, channels, sums + tap * channels);
      for (Index t = tap; t < tap + kTapsAtOnce && whole < channels; ++t)
        add_tap_gradient(row, t, whole, channels, sums + t * channels);
    }
    for (; tap < s.kernel_width; ++tap) add_tap_gradient(row, tap, 0, channels, sums + tap * channels);
  }
}

}  // namespace

void conv2d_backward_weights(const Conv2dShape& s, const float* x, const float* y_grad, float* weight_grad,
                             bool accumulate) {
  const Index of_x = s.in_height * s.in_width * s.in_channels, of_y = s.out_height * s.out_width * s.out_channels;
  const Index taps = taps_of(s), channels = s.in_channels,
              parts = std::clamp<Index>(s.batch / kImagesOfAPart, 1, kMostParts);
  std::vector<float> total(static_cast<std::size_t>(taps * channels));
  sum_of_parts(parts, taps * channels, total.data(), [&](Index part, float* to) {
    TapSums sums(taps * channels);
    for (Index n = s.batch * part / parts; n < s.batch * (part + 1) / parts; ++n)
      for (Index i = 0; i < s.out_height; ++i) {
        add_row_gradient(s, x + n * of_x, y_grad + n * of_y, i, sums.few());
        sums.count(s.out_width);
      }
    sums.write(to);
  });
  for (Index c = 0; c < channels; ++c)
    for (Index tap = 0; tap < taps; ++tap) {
      float& slot = weight_grad[c * taps + tap];
      const float sum = total[static_cast<std::size_t>(tap * channels + c)];
      slot = accumulate ? slot + sum : sum;
    }
}

}  // namespace lockstep::depthwise
