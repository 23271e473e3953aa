#include "kernels/cpu/conv/winograd/winograd_narrow.h"

#include <algorithm>

#include "kernels/cpu/conv/narrow_conv.h"
#include "kernels/cpu/conv/winograd/winograd_tiles.h"
#include "kernels/cpu/simd/by_isa.h"
#include "src/core/process/compute_threads.h"

#define LOCKSTEP_LOOPS "kernels/cpu/conv/winograd/winograd_narrow.inc"
#include "kernels/cpu/simd/for_each_isa.h"

namespace lockstep::winograd_narrow {

bool suits(const Conv2dShape& s) {
  constexpr std::int64_t kMostChannels = 4;
  return s.kernel_height == 5 && s.in_channels <= kMostChannels && winograd::has_form(s) &&
         s.out_channels % LOCKSTEP_BY_ISA(kLanes) == 0;
}

void conv2d(const Conv2dShape& s, const float* x, const float* weight, const float* bias, bool relu, float* y) {
  LOCKSTEP_BY_ISA(winograd_narrow::conv2d)(s, x, weight, bias, relu, y);
}
void conv2d_backward_weights(const Conv2dShape& s, const float* x, const float* y_grad, Out weight_grad,
                             Out bias_grad) {
  LOCKSTEP_BY_ISA(winograd_narrow::conv2d_backward_weights)(s, x, y_grad, weight_grad, bias_grad);
}

}  // namespace lockstep::winograd_narrow
