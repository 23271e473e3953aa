// The optimizer's step, one pass over each parameter: it reads and writes what it must and runs at memory bandwidth.
// The order of operations is the plain kernel's, so that the bits are its bits.
#include "kernels/cpu/fast.h"
#include "lockstep/core/cpu_dispatch.h"

namespace lockstep::fast {

namespace {

LOCKSTEP_CPU_DISPATCH(void, plain_step, (float* weight, const float* grad, Index count, float lr, float decay),
                      (weight, grad, count, lr, decay), {
                        LOCKSTEP_INDEPENDENT_ITERATIONS
                        for (Index i = 0; i < count; ++i) weight[i] -= lr * (grad[i] + decay * weight[i]);
                      })

LOCKSTEP_CPU_DISPATCH(void, momentum_step,
                      (float* weight, const float* grad, float* momentum, Index count, float lr, float factor, float decay),
                      (weight, grad, momentum, count, lr, factor, decay), {
                        LOCKSTEP_INDEPENDENT_ITERATIONS
                        for (Index i = 0; i < count; ++i) {
                          const float velocity = factor * momentum[i] + (grad[i] + decay * weight[i]);
                          momentum[i] = velocity;
                          weight[i] -= lr * velocity;
                        }
                      })

LOCKSTEP_CPU_DISPATCH(void, nesterov_step,
                      (float* weight, const float* grad, float* momentum, Index count, float lr, float factor, float decay),
                      (weight, grad, momentum, count, lr, factor, decay), {
                        LOCKSTEP_INDEPENDENT_ITERATIONS
                        for (Index i = 0; i < count; ++i) {
                          const float decayed = grad[i] + decay * weight[i];
                          const float velocity = factor * momentum[i] + decayed;
                          momentum[i] = velocity;
                          weight[i] -= lr * (decayed + factor * velocity);
                        }
                      })

}  // namespace

void sgd_step(std::span<const SgdTensor> tensors, const SgdParams& params, Stream&) {
  for (const SgdTensor& t : tensors) {
    if (t.momentum == nullptr)
      plain_step(t.weight, t.grad, t.count, params.lr, params.weight_decay);
    else if (params.nesterov)
      nesterov_step(t.weight, t.grad, t.momentum, t.count, params.lr, params.momentum, params.weight_decay);
    else
      momentum_step(t.weight, t.grad, t.momentum, t.count, params.lr, params.momentum, params.weight_decay);
  }
}

}  // namespace lockstep::fast
