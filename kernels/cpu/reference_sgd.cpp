// Stochastic gradient descent with momentum, weight decay and Nesterov's look-ahead, in float: the update that every
// faster kernel must repeat bit for bit, so that ranks on unlike CPUs keep the same weights.
#include "kernels/cpu/reference.h"

namespace lockstep::reference {

void sgd_step(std::span<const SgdTensor> tensors, const SgdParams& params, Stream&) {
  for (const SgdTensor& tensor : tensors)
    for (Index i = 0; i < tensor.count; ++i) {
      const float grad = tensor.grad[i] + params.weight_decay * tensor.weight[i];
      float step = grad;
      if (tensor.momentum != nullptr) {
        const float velocity = params.momentum * tensor.momentum[i] + grad;
        tensor.momentum[i] = velocity;
        step = params.nesterov ? grad + params.momentum * velocity : velocity;
      }
      tensor.weight[i] -= params.lr * step;
    }
}

}  // namespace lockstep::reference
