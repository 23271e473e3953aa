// The bias is added to each row; its gradient is the sum over the rows.
#include <algorithm>

#include "kernels/cpu/fast.h"
#include "lockstep/core/cpu_dispatch.h"

namespace lockstep::fast {

namespace {

LOCKSTEP_CPU_DISPATCH(void, bias_loop, (float* y, const float* bias, Index rows, Index channels),
                      (y, bias, rows, channels), {
                        for (Index row = 0; row < rows; ++row, y += channels) {
                          LOCKSTEP_INDEPENDENT_ITERATIONS
                          for (Index c = 0; c < channels; ++c) y[c] += bias[c];
                        }
                      })

// sums += the column sums of at most a few hundred rows, four at a time.
LOCKSTEP_CPU_DISPATCH(void, column_sums_loop, (const float* in, float* sums, Index rows, Index channels),
                      (in, sums, rows, channels), {
                        Index row = 0;
                        for (; row + 4 <= rows; row += 4, in += 4 * channels) {
                          LOCKSTEP_INDEPENDENT_ITERATIONS
                          for (Index c = 0; c < channels; ++c)
                            sums[c] += (in[c] + in[channels + c]) + (in[2 * channels + c] + in[3 * channels + c]);
                        }
                        for (; row < rows; ++row, in += channels) {
                          LOCKSTEP_INDEPENDENT_ITERATIONS
                          for (Index c = 0; c < channels; ++c) sums[c] += in[c];
                        }
                      })

void add_bias(Out y, In bias, Stream&) {
  const Index channels = bias.count();
  if (channels > 0) bias_loop(y.floats(), bias.floats(), y.count() / channels, channels);
}

void bias_backward(In y_grad, Out bias_grad, Stream&) {
  const Index channels = bias_grad.count();
  if (!bias_grad.accumulate) std::fill_n(bias_grad.floats(), channels, 0.0F);
  if (channels > 0) add_column_sums(y_grad.floats(), y_grad.count() / channels, channels, bias_grad.floats());
}

}  // namespace

void add_column_sums(const float* x, Index rows, Index columns, float* sums) {
  // Sums of sums: each float adds at most kBlock / 4 terms of its block, then one term per block.
  constexpr Index kBlock = 256;
  const Buffer memory = cpu_device().allocate(static_cast<std::size_t>(columns) * sizeof(float));
  auto* const block_sums = reinterpret_cast<float*>(memory.data());
  for (Index row = 0; row < rows; row += kBlock) {
    std::fill_n(block_sums, columns, 0.0F);
    column_sums_loop(x + row * columns, block_sums, std::min(kBlock, rows - row), columns);
    bias_loop(sums, block_sums, 1, columns);
  }
}

void use_bias(KernelTable& table) {
  table.bias = any_float<add_bias>;
  table.bias_backward = any_float<bias_backward>;
}

}  // namespace lockstep::fast
