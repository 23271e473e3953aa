// The table of the plain kernels.
#include "kernels/cpu/reference.h"

#include "kernels/cpu/mixed.h"

namespace lockstep {

namespace {

KernelTable make_reference_kernels() {
  KernelTable table = {
      .fill = reference::fill,
      .add = reference::add,
      .accumulate = reference::accumulate,
      .scale = reference::scale,
      .scale_by = reference::scale_by,
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
      .sgd_step = reference::sgd_step,
      .find_bad_gradients = reference::find_bad_gradients,
      .update_loss_scale = reference::update_loss_scale,
      .mixed = reference_mixed_kernels(),
      .families = {},
  };
  // Families of the layers above core: each has one function that adds its kernels, named here.
  for (const auto add : {reference::add_augment_kernels}) add(table);
  return table;
}

}  // namespace

const KernelTable& reference_kernels() {
  static const KernelTable kTable = make_reference_kernels();
  return kTable;
}

}  // namespace lockstep
