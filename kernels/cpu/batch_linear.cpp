#include "kernels/cpu/batch_linear.h"

#include <algorithm>

#include "kernels/cpu/product_amx.h"
#include "lockstep/core/error.h"
#include "src/core/process/compute_threads.h"

#if defined(__x86_64__)
#include "kernels/cpu/product_avx512.h"
#include "kernels/cpu/transpose_avx512.h"
#endif

namespace lockstep::batch_linear {

#if defined(__x86_64__)

namespace {

using avx512::kLanes;
using Index = std::int64_t;

constexpr Index kRows = 48;  // minimum number of output features per thread
constexpr Index kPanel = 4 * kLanes;

float* floats(const Buffer& buffer) { return reinterpret_cast<float*>(buffer.data()); }

// y (batch, outs) = from (outs, batch) transposed, plus bias, clamped.
LOCKSTEP_TARGET_AVX512 void finish_transposed(const LinearShape& s, const float* from, const float* bias, bool relu,
                                              float* y) {
  Index o = 0;
  for (; o + kLanes <= s.out_features; o += kLanes)
    for (Index n = 0; n < s.batch; n += kLanes) {
      __m512 square[kLanes];
      for (Index i = 0; i < kLanes; ++i) {
        const __m512 sum =
            _mm512_loadu_ps(from + (o + i) * s.batch + n) + _mm512_set1_ps(bias == nullptr ? 0 : bias[o + i]);
        square[i] = relu ? avx512::clamped(sum) : sum;
      }
      avx512::transpose_square(square);
      for (Index i = 0; i < kLanes; ++i) _mm512_storeu_ps(y + (n + i) * s.out_features + o, square[i]);
    }
  for (; o < s.out_features; ++o)
    for (Index n = 0; n < s.batch; ++n) {
      const float value = from[o * s.batch + n] + (bias == nullptr ? 0 : bias[o]);
      y[n * s.out_features + o] = relu && value < 0 ? 0 : value;
    }
}

// y^T = weight * x^T: threads share the output features.
void by_rows_of_weights(const LinearShape& s, const float* x, const float* weight, const float* bias, bool relu,
                        float* y) {
  const Buffer columns = cpu_device().allocate(s.batch * s.in_features * sizeof(float));
  const Buffer result = cpu_device().allocate(s.batch * s.out_features * sizeof(float));
  const Index panel = kPanel * s.in_features;
  for (Index n = 0; n < s.batch; n += kPanel)
    avx512::transpose(x + n * s.in_features, s.in_features, floats(columns) + n / kPanel * panel, kPanel, s.in_features,
                      kPanel);
  const Index parts = std::min<Index>((s.out_features + kRows - 1) / kRows, compute_threads());
  in_parallel(parts, [&](Index part) {
    const Index begin = s.out_features * part / parts, end = s.out_features * (part + 1) / parts;
    for (Index n = 0; n < s.batch; n += kPanel)
      avx512::multiply_panel(end - begin, s.in_features, weight + begin * s.in_features, s.in_features,
                             floats(columns) + n / kPanel * panel, floats(result) + begin * s.batch + n, s.batch, {});
  });
  finish_transposed(s, floats(result), bias, relu, y);
}

// y = x * weight^T: threads share the panels of 64 output features.
void by_rows_of_x(const LinearShape& s, const float* x, const float* weight, const float* bias, bool relu, float* y) {
  const Index panels = s.out_features / kPanel, parts = std::min<Index>(panels, compute_threads());
  in_parallel(parts, [&](Index part) {
    const Buffer panel = cpu_device().allocate(kPanel * s.in_features * sizeof(float));
    for (Index o = panels * part / parts * kPanel; o < panels * (part + 1) / parts * kPanel; o += kPanel) {
      avx512::transpose(weight + o * s.in_features, s.in_features, floats(panel), kPanel, s.in_features, kPanel);
      avx512::multiply_panel(s.batch, s.in_features, x, s.in_features, floats(panel), y + o, s.out_features,
                             {bias == nullptr ? nullptr : bias + o, relu});
    }
  });
}

// c (rows, 64) = or += a * b, rows and columns as stored. While the first rows are multiplied, prefetches the panel of
// b at `next`, whose rows are four cache lines long; null: no prefetch.
LOCKSTEP_TARGET_AVX512 void multiply_and_fetch(Index rows, Index inner, const float* a, Index a_row, const float* b,
                                               Index b_row, float* c, Index c_row, bool accumulate, const float* next) {
  Index row = 0;
  for (int line = 0; row + 6 <= rows; row += 6, ++line) {
    if (next != nullptr && line < 4)
      avx512::multiply_rows<6>(inner, a + row * a_row, a_row, 1, b, b_row, c + row * c_row, c_row, accumulate,
                               avx512::FetchNext{next + line * kLanes, b_row});
    else
      avx512::multiply_rows<6>(inner, a + row * a_row, a_row, 1, b, b_row, c + row * c_row, c_row, accumulate);
  }
  avx512::multiply_column<4, 4>(rows - row, inner, a + row * a_row, a_row, 1, b, b_row, c + row * c_row, c_row,
                                accumulate);
}

// c (rows, 64) = or += the products of a (inner, rows) and b (inner, 64), whose rows are contiguous. Prefetches c's
// cache lines meanwhile.
LOCKSTEP_TARGET_AVX512 void multiply_and_fetch_results(Index rows, Index inner, const float* a, const float* b,
                                                       float* c, Index c_row, bool accumulate) {
  Index row = 0;
  for (; row + 6 <= rows; row += 6)
    avx512::multiply_rows<6>(inner, a + row, 1, rows, b, kPanel, c + row * c_row, c_row, accumulate,
                             avx512::FetchResults{c + row * c_row, c_row, 24});
  avx512::multiply_column<4, 4>(rows - row, inner, a + row, 1, rows, b, kPanel, c + row * c_row, c_row, accumulate);
}

// Copies rows of `columns` floats; the distance of rows changes from in_row to out_row.
void copy_rows(const float* in, Index in_row, float* out, Index out_row, Index rows, Index columns) {
  for (Index row = 0; row < rows; ++row) std::copy_n(in + row * in_row, columns, out + row * out_row);
}

bool has_more_rows_of_x(const LinearShape& s) { return s.out_features % kPanel == 0 && s.batch >= s.out_features; }

// True if the weights are too large for the second-level cache.
bool has_large_weights(const LinearShape& s) { return s.in_features * s.out_features >= Index{1} << 20; }

bool is_small_batch(const LinearShape& s, Index most) {
  return cpu_isa() >= Isa::kAvx512 && s.batch > 0 && s.batch <= most && s.in_features > 0 &&
         s.in_features % kPanel == 0 && s.out_features > 0;
}

}  // namespace

bool suits(const LinearShape& s) {
  return cpu_isa() >= Isa::kAvx512 && s.batch > 0 && s.in_features > 0 && s.out_features > 0 &&
         (s.batch % kPanel == 0 || has_more_rows_of_x(s)) && !amx::suits(s.batch, s.out_features, s.in_features);
}

void linear(const LinearShape& s, const float* x, const float* weight, const float* bias, bool relu, float* y) {
  const auto compute = has_more_rows_of_x(s) ? by_rows_of_x : by_rows_of_weights;
  compute(s, x, weight, bias, relu, y);
}

bool suits_backward_data(const LinearShape& s) {
  return is_small_batch(s, 96) && has_large_weights(s) && !amx::suits(s.batch, s.in_features, s.out_features);
}
bool suits_backward_weights(const LinearShape& s) {
  constexpr Index kFewestOuts = 48, kFewestRows = 48;
  return is_small_batch(s, 128) && s.out_features >= kFewestOuts && (s.batch >= kFewestRows || !has_large_weights(s)) &&
         !amx::suits(s.out_features, s.in_features, s.batch);
}

// Threads share the panels of 64 input features. A square of 64 x 64 weights is multiplied by all rows of y_grad while
// the next square is fetched. Its rows are contiguous 64 floats at a time, so each weight is read once.
void linear_backward_data(const LinearShape& s, const float* y_grad, const float* weight, float* x_grad,
                          bool accumulate) {
  constexpr Index kPiece = 64;
  const Index panels = s.in_features / kPanel, parts = std::min<Index>(panels, compute_threads());
  in_parallel(parts, [&](Index part) {
    const Index begin = panels * part / parts * kPanel, end = panels * (part + 1) / parts * kPanel;
    for (Index o = 0; o < s.out_features; o += kPiece) {
      const Index outs = std::min(kPiece, s.out_features - o);
      const float* const rows = weight + o * s.in_features;
      for (Index i = begin; i < end; i += kPanel) {
        const float* const below = o + 2 * kPiece <= s.out_features ? rows + kPiece * s.in_features + begin : nullptr;
        multiply_and_fetch(s.batch, outs, y_grad + o, s.out_features, rows + i, s.in_features, x_grad + i,
                           s.in_features, accumulate || o > 0, i + kPanel < end ? rows + i + kPanel : below);
      }
    }
  });
}

// Threads share the output features. Blocks of y_grad (batch, kOuts) and panels of x (batch, 64) fit into the
// first-level cache.
void linear_backward_weights(const LinearShape& s, const float* x, const float* y_grad, float* weight_grad,
                             bool accumulate) {
  constexpr Index kOuts = 48;
  const Buffer panels = cpu_device().allocate(s.batch * s.in_features * sizeof(float));
  for (Index i = 0; i < s.in_features; i += kPanel)
    copy_rows(x + i, s.in_features, floats(panels) + i * s.batch, kPanel, s.batch, kPanel);
  const Index blocks = (s.out_features + kOuts - 1) / kOuts, parts = std::min<Index>(blocks, compute_threads());
  in_parallel(parts, [&](Index part) {
    const Buffer block = cpu_device().allocate(s.batch * kOuts * sizeof(float));
    for (Index o = blocks * part / parts * kOuts; o < std::min(s.out_features, blocks * (part + 1) / parts * kOuts);
         o += kOuts) {
      const Index outs = std::min(kOuts, s.out_features - o);
      copy_rows(y_grad + o, s.out_features, floats(block), outs, s.batch, outs);
      for (Index i = 0; i < s.in_features; i += kPanel)
        multiply_and_fetch_results(outs, s.batch, floats(block), floats(panels) + i * s.batch,
                                   weight_grad + o * s.in_features + i, s.in_features, accumulate);
    }
  });
}

// Threads share bands of rows of the result; when accumulating, a band is computed in separate memory first.
void transpose(const float* from, Index rows, Index columns, float* to, bool accumulate) {
  constexpr Index kBand = kLanes;
  in_parallel((columns + kBand - 1) / kBand, [&](Index band) {
    const Index first = band * kBand, count = std::min(kBand, columns - first);
    float* const target = to + first * rows;
    if (!accumulate) return avx512::transpose(from + first, columns, target, rows, count, rows);
    const Buffer aside = cpu_device().allocate(count * rows * sizeof(float));
    avx512::transpose(from + first, columns, floats(aside), rows, count, rows);
    cpu_device().kernels().add({target, {count * rows}}, {floats(aside), {count * rows}}, {target, {count * rows}},
                               cpu_device().default_stream());
  });
}

#else

bool suits(const LinearShape&) { return false; }
void transpose(const float*, std::int64_t, std::int64_t, float*, bool) { LOCKSTEP_CHECK(false, "no AVX-512 here"); }
bool suits_backward_data(const LinearShape&) { return false; }
bool suits_backward_weights(const LinearShape&) { return false; }

void linear(const LinearShape&, const float*, const float*, const float*, bool, float*) {
  LOCKSTEP_CHECK(false, "no AVX-512 here");
}
void linear_backward_data(const LinearShape&, const float*, const float*, float*, bool) {
  LOCKSTEP_CHECK(false, "no AVX-512 here");
}
void linear_backward_weights(const LinearShape&, const float*, const float*, float*, bool) {
  LOCKSTEP_CHECK(false, "no AVX-512 here");
}

#endif

}  // namespace lockstep::batch_linear
