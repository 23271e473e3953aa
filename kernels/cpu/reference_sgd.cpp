// Stochastic gradient descent with momentum, weight decay and Nesterov's look-ahead, in float: the update that every
// faster kernel must repeat bit for bit, so that ranks on unlike CPUs keep the same weights.
#include <cmath>

#include "kernels/cpu/reference.h"

namespace lockstep::reference {

void sgd_step(std::span<const SgdTensor> tensors, const SgdParams& params, Stream&) {
  if (skips(params)) return;
  const float unscale = unscale_of(params), lr = *params.lr;
  for (const SgdTensor& tensor : tensors)
    for (Index i = 0; i < tensor.count; ++i) {
      const float grad = tensor.grad[i] * unscale + params.weight_decay * tensor.weight[i];
      float step = grad;
      if (tensor.momentum != nullptr) {
        const float velocity = params.momentum * tensor.momentum[i] + grad;
        tensor.momentum[i] = velocity;
        step = params.nesterov ? grad + params.momentum * velocity : velocity;
      }
      tensor.weight[i] -= lr * step;
    }
}

void find_bad_gradients(std::span<const SgdTensor> tensors, LossScaleState* state, Stream&) {
  for (const SgdTensor& tensor : tensors)
    for (Index i = 0; i < tensor.count; ++i)
      if (!std::isfinite(tensor.grad[i])) state->found_bad = 1;
}

void update_loss_scale(const LossScaleRule& rule, LossScaleState* state, Stream&) {
  if (state->found_bad != 0) {
    state->scale *= rule.backoff;
    state->good_steps = 0;
    state->skipped_steps += 1;
    state->found_bad = 0;
    return;
  }
  state->good_steps += 1;
  if (state->good_steps < static_cast<float>(rule.growth_interval)) return;
  if (std::isfinite(state->scale * rule.growth)) state->scale *= rule.growth;
  state->good_steps = 0;
}

}  // namespace lockstep::reference
