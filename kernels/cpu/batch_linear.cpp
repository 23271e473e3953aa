#include "kernels/cpu/batch_linear.h"

#include <algorithm>

#include "lockstep/core/error.h"
#include "src/core/compute_threads.h"

#if defined(__x86_64__)
#include "kernels/cpu/product_avx512.h"
#endif

namespace lockstep::batch_linear {

namespace {

using Index = std::int64_t;

constexpr Index kRows = 48;    // of output features, at least, in a thread
constexpr Index kSquare = 16;  // transposed at a time: a cache line each way

// to (columns, rows) = from (rows, columns) transposed; rows in multiples of kSquare.
LOCKSTEP_CPU_DISPATCH(void, transpose, (const float* from, Index rows, Index columns, float* to), (from, rows, columns, to), {
  for (Index row = 0; row < rows; row += kSquare)
    for (Index column = 0; column < columns; ++column)
      for (Index lane = 0; lane < kSquare; ++lane) to[column * rows + row + lane] = from[(row + lane) * columns + column];
})

// y (batch, outs) = from (outs, batch) transposed, plus bias, clamped.
LOCKSTEP_CPU_DISPATCH(void, finish, (const float* from, const float* bias, bool relu, Index outs, Index batch, float* y),
                      (from, bias, relu, outs, batch, y), {
                        for (Index square = 0; square < batch; square += kSquare)
                          for (Index o = 0; o < outs; ++o) {
                            const float offset = bias == nullptr ? 0 : bias[o];
                            for (Index n = square; n < square + kSquare; ++n) {
                              const float value = from[o * batch + n] + offset;
                              y[n * outs + o] = relu && value < 0 ? 0 : value;
                            }
                          }
                      })

float* floats(const Buffer& buffer) { return reinterpret_cast<float*>(buffer.data()); }

}  // namespace

#if defined(__x86_64__)

bool suits(const LinearShape& s) {
  return cpu_isa() == Isa::kAvx512 && s.batch > 0 && s.batch % 64 == 0 && s.in_features > 0 && s.out_features > 0;
}

void linear(const LinearShape& s, const float* x, const float* weight, const float* bias, bool relu, float* y) {
  const Buffer columns = cpu_device().allocate(s.batch * s.in_features * sizeof(float));
  const Buffer result = cpu_device().allocate(s.batch * s.out_features * sizeof(float));
  transpose(x, s.batch, s.in_features, floats(columns));
  const Index parts = std::min<Index>((s.out_features + kRows - 1) / kRows, compute_threads());
  in_parallel(parts, [&](Index part) {
    const Index begin = s.out_features * part / parts, end = s.out_features * (part + 1) / parts;
    avx512::multiply(end - begin, s.batch, s.in_features, weight + begin * s.in_features, s.in_features, 1, floats(columns),
                     floats(result) + begin * s.batch, false);
  });
  finish(floats(result), bias, relu, s.out_features, s.batch, y);
}

#else

bool suits(const LinearShape&) { return false; }

void linear(const LinearShape&, const float*, const float*, const float*, bool, float*) { LOCKSTEP_CHECK(false, "no AVX-512 here"); }

#endif

}  // namespace lockstep::batch_linear
