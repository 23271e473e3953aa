// Weights (C, taps) are transposed to (taps, C) first.
#include "kernels/cpu/conv/depthwise.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/conv/depthwise_rows.h"
#include "kernels/cpu/simd/by_isa.h"
#include "src/core/process/compute_threads.h"

#define LOCKSTEP_LOOPS "kernels/cpu/conv/depthwise.inc"
#include "kernels/cpu/simd/for_each_isa.h"

namespace lockstep::depthwise {

bool suits(const Conv2dShape& s) {
  return s.groups > 1 && s.groups == s.in_channels && s.groups == s.out_channels &&
         s.batch * s.out_height * s.out_width > 0;
}

void conv2d(const Conv2dShape& s, const float* x, const float* weight, const float* bias, bool relu, float* y) {
  LOCKSTEP_BY_ISA(depthwise::conv2d)(s, x, weight, bias, relu, y);
}
void conv2d_backward_data(const Conv2dShape& s, const float* y_grad, const float* weight, float* x_grad,
                          bool accumulate) {
  LOCKSTEP_BY_ISA(depthwise::conv2d_backward_data)(s, y_grad, weight, x_grad, accumulate);
}

}  // namespace lockstep::depthwise
