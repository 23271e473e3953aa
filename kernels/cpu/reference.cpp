// The table of the plain kernels.
#include "kernels/cpu/reference.h"

namespace lockstep {

const KernelTable& reference_kernels() {
  static const KernelTable kTable = {
      .fill = reference::fill,
      .add = reference::add,
      .accumulate = reference::accumulate,
      .scale = reference::scale,
      .relu = reference::relu,
      .relu_backward = reference::relu_backward,
      .bias = reference::bias,
      .bias_backward = reference::bias_backward,
      .conv2d = reference::conv2d,
      .conv2d_backward_data = reference::conv2d_backward_data,
      .conv2d_backward_weights = reference::conv2d_backward_weights,
      .max_pool2d = reference::max_pool2d,
      .max_pool2d_backward = reference::max_pool2d_backward,
      .lrn = reference::lrn,
      .lrn_backward = reference::lrn_backward,
      .linear = reference::linear,
      .linear_backward_data = reference::linear_backward_data,
      .linear_backward_weights = reference::linear_backward_weights,
      .softmax_cross_entropy = reference::softmax_cross_entropy,
      .softmax_cross_entropy_backward = reference::softmax_cross_entropy_backward,
      .l2_loss = reference::l2_loss,
      .l2_loss_backward = reference::l2_loss_backward,
      .sgd_step = reference::sgd_step,
  };
  return kTable;
}

}  // namespace lockstep
