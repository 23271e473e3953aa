// Blocks of tiles go through three steps whose data stays in the second-level cache: transform to (point, tile,
// channel), one matrix product per point, transform back. Gradients of the weights first sum their products over the
// blocks of a part.
#include "kernels/cpu/conv/winograd/winograd.h"

#include <algorithm>

#include "kernels/cpu/conv/winograd/winograd_tiles.h"
#include "kernels/cpu/simd/by_isa.h"
#include "kernels/cpu/simd/transpose.h"
#include "src/core/process/compute_threads.h"

#define LOCKSTEP_LOOPS "kernels/cpu/conv/winograd/winograd.inc"
#include "kernels/cpu/simd/for_each_isa.h"

namespace lockstep::winograd {

namespace {

// Tiles of 4 x 4 need a quarter to a third of the direct products, but also compute outputs beyond the edge.
bool wastes_little(Index height, Index width) {
  const auto whole = [](Index size) { return (size + 3) / 4 * 4; };
  return whole(height) * whole(width) <= 2 * height * width;
}

}  // namespace

bool has_form(const Conv2dShape& s) {
  const Index kernel = s.kernel_height;
  if ((kernel != 3 && kernel != 5) || s.kernel_width != kernel || s.groups != 1) return false;
  if (s.stride_height != 1 || s.stride_width != 1 || s.batch <= 0 || s.in_channels <= 0 || s.out_channels <= 0)
    return false;
  for (const Index pad : {s.pad_top, s.pad_left, s.pad_bottom, s.pad_right})
    if (pad < 0 || pad >= kernel) return false;
  return wastes_little(s.out_height, s.out_width);
}

bool suits(const Conv2dShape& s) {
  return has_form(s) && wastes_little(s.in_height, s.in_width) && LOCKSTEP_BY_ISA(winograd::suits)(s);
}

void conv2d(const Conv2dShape& s, const float* x, const float* weight, const float* bias, bool relu, float* y) {
  LOCKSTEP_BY_ISA(winograd::conv2d)(s, x, weight, bias, relu, y);
}
void conv2d_backward_data(const Conv2dShape& s, const float* y_grad, const float* weight, float* x_grad,
                          bool accumulate) {
  LOCKSTEP_BY_ISA(winograd::conv2d_backward_data)(s, y_grad, weight, x_grad, accumulate);
}
void conv2d_backward_weights(const Conv2dShape& s, const float* x, const float* y_grad, float* weight_grad,
                             bool accumulate) {
  LOCKSTEP_BY_ISA(winograd::conv2d_backward_weights)(s, x, y_grad, weight_grad, accumulate);
}

}  // namespace lockstep::winograd
