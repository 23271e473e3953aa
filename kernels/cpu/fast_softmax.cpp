// Softmax: each row is read from memory once; further passes find it in the first-level cache.
#include <cmath>

#include "kernels/cpu/fast.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector_math.h"
#include "lockstep/core/cpu_dispatch.h"

namespace lockstep::fast {

namespace {

// Subtracts twice, because largest + log_sum would be rounded to the precision of `largest`.
LOCKSTEP_CPU_DISPATCH(void, shift_row, (const float* x, float largest, float log_sum, Index count, float* y),
                      (x, largest, log_sum, count, y), {
                        LOCKSTEP_INDEPENDENT_ITERATIONS
                        for (Index c = 0; c < count; ++c) y[c] = (x[c] - largest) - log_sum;
                      })

LOCKSTEP_CPU_DISPATCH(void, softmax_gradient,
                      (const float* y, const float* y_grad, float sum, Index count, bool accumulate, float* x_grad),
                      (y, y_grad, sum, count, accumulate, x_grad), {
                        if (accumulate) {
                          LOCKSTEP_INDEPENDENT_ITERATIONS
                          for (Index c = 0; c < count; ++c) x_grad[c] += y[c] * (y_grad[c] - sum);
                        } else {
                          LOCKSTEP_INDEPENDENT_ITERATIONS
                          for (Index c = 0; c < count; ++c) x_grad[c] = y[c] * (y_grad[c] - sum);
                        }
                      })

LOCKSTEP_CPU_DISPATCH(void, log_softmax_gradient,
                      (const float* y, const float* y_grad, float sum, Index count, bool accumulate, float* x_grad),
                      (y, y_grad, sum, count, accumulate, x_grad), {
                        if (accumulate) {
                          LOCKSTEP_INDEPENDENT_ITERATIONS
                          for (Index c = 0; c < count; ++c) x_grad[c] += y_grad[c] - vector_math::exp(y[c]) * sum;
                        } else {
                          LOCKSTEP_INDEPENDENT_ITERATIONS
                          for (Index c = 0; c < count; ++c) x_grad[c] = y_grad[c] - vector_math::exp(y[c]) * sum;
                        }
                      })

void softmax(In in, bool log, Out out, Stream&) {
  const Index rows = in.shape[0], channels = in.shape[1];
  for (Index n = 0; n < rows && channels > 0; ++n) {
    const float* const x = in.floats() + n * channels;
    float* const y = out.floats() + n * channels;
    const float largest = row_maximum(x, channels), sum = row_exponentials_of_many(x, largest, channels, y);
    if (log)
      shift_row(x, largest, std::log(sum), channels, y);
    else
      scale_row(y, 1 / sum, channels);
  }
}

void softmax_backward(In out, In out_grad, bool log, Out x_grad, Stream&) {
  const Index rows = out.shape[0], channels = out.shape[1];
  for (Index n = 0; n < rows && channels > 0; ++n) {
    const float *const y = out.floats() + n * channels, *const grad = out_grad.floats() + n * channels;
    float* const to = x_grad.floats() + n * channels;
    if (log)
      log_softmax_gradient(y, grad, row_sum(grad, channels), channels, x_grad.accumulate, to);
    else
      softmax_gradient(y, grad, row_product(y, grad, channels), channels, x_grad.accumulate, to);
  }
}

}  // namespace

void use_softmax(KernelTable& table) {
  table.softmax = any_float<softmax>;
  table.softmax_backward = any_float<softmax_backward>;
}

}  // namespace lockstep::fast
