// The optimizer's step, one pass over each parameter: it reads and writes what it must and runs at memory bandwidth.
// The order of operations is the plain kernel's, so that the bits are its bits.
#include <bit>

#include "kernels/cpu/fast.h"
#include "kernels/cpu/reference.h"
#include "lockstep/core/cpu_dispatch.h"

namespace lockstep::fast {

namespace {

LOCKSTEP_CPU_DISPATCH(void, plain_step, (float* weight, const float* grad, Index count, float lr, float decay, float unscale),
                      (weight, grad, count, lr, decay, unscale), {
                        LOCKSTEP_INDEPENDENT_ITERATIONS
                        for (Index i = 0; i < count; ++i) weight[i] -= lr * (grad[i] * unscale + decay * weight[i]);
                      })

LOCKSTEP_CPU_DISPATCH(void, momentum_step,
                      (float* weight, const float* grad, float* momentum, Index count, float lr, float factor, float decay, float unscale),
                      (weight, grad, momentum, count, lr, factor, decay, unscale), {
                        LOCKSTEP_INDEPENDENT_ITERATIONS
                        for (Index i = 0; i < count; ++i) {
                          const float velocity = factor * momentum[i] + (grad[i] * unscale + decay * weight[i]);
                          momentum[i] = velocity;
                          weight[i] -= lr * velocity;
                        }
                      })

LOCKSTEP_CPU_DISPATCH(void, nesterov_step,
                      (float* weight, const float* grad, float* momentum, Index count, float lr, float factor, float decay, float unscale),
                      (weight, grad, momentum, count, lr, factor, decay, unscale), {
                        LOCKSTEP_INDEPENDENT_ITERATIONS
                        for (Index i = 0; i < count; ++i) {
                          const float decayed = grad[i] * unscale + decay * weight[i];
                          const float velocity = factor * momentum[i] + decayed;
                          momentum[i] = velocity;
                          weight[i] -= lr * (decayed + factor * velocity);
                        }
                      })

// Infinity and NaN have the largest exponent.
LOCKSTEP_CPU_DISPATCH(bool, has_bad, (const float* grad, Index count), (grad, count), {
  std::uint32_t bad = 0;
  for (Index i = 0; i < count; ++i) bad |= (std::bit_cast<std::uint32_t>(grad[i]) & 0x7f800000U) == 0x7f800000U ? 1U : 0U;
  return bad != 0;
})

}  // namespace

void sgd_step(std::span<const SgdTensor> tensors, const SgdParams& params, Stream&) {
  if (reference::skips(params)) return;
  const float unscale = reference::unscale_of(params), lr = *params.lr;
  for (const SgdTensor& t : tensors) {
    if (t.momentum == nullptr)
      plain_step(t.weight, t.grad, t.count, lr, params.weight_decay, unscale);
    else if (params.nesterov)
      nesterov_step(t.weight, t.grad, t.momentum, t.count, lr, params.momentum, params.weight_decay, unscale);
    else
      momentum_step(t.weight, t.grad, t.momentum, t.count, lr, params.momentum, params.weight_decay, unscale);
  }
}

void find_bad_gradients(std::span<const SgdTensor> tensors, LossScaleState* state, Stream&) {
  for (const SgdTensor& tensor : tensors)
    if (has_bad(tensor.grad, tensor.count)) state->found_bad = 1;
}

}  // namespace lockstep::fast
