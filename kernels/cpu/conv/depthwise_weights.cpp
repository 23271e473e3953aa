// The gradient of the weights: about a hundred products are summed in float32, those sums in double, and the sums of a
// few parts of the batch, which threads share, in float32.
#include <algorithm>
#include <vector>

#include "kernels/cpu/conv/batch_parts.h"
#include "kernels/cpu/conv/depthwise.h"
#include "kernels/cpu/conv/depthwise_rows.h"
#include "kernels/cpu/simd/by_isa.h"
#include "lockstep/core/cpu_dispatch.h"
#include "src/core/process/compute_threads.h"

#define LOCKSTEP_LOOPS "kernels/cpu/conv/depthwise_weights.inc"
#include "kernels/cpu/simd/for_each_isa.h"

namespace lockstep::depthwise {

void conv2d_backward_weights(const Conv2dShape& s, const float* x, const float* y_grad, float* weight_grad,
                             bool accumulate) {
  LOCKSTEP_BY_ISA(depthwise::conv2d_backward_weights)(s, x, y_grad, weight_grad, accumulate);
}

}  // namespace lockstep::depthwise
