// The CUDA device's kernel table.
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/mixed.h"

namespace lockstep::cuda {

KernelTable cuda_kernels() {
  KernelTable table = {
      .fill = fill,
      .add = add,
      .accumulate = accumulate,
      .scale = scale,
      .scale_by = scale_by,
      .relu = relu,
      .relu_backward = relu_backward,
      .bias = bias,
      .bias_backward = bias_backward,
      .conv2d = conv2d,
      .conv2d_backward_data = conv2d_backward_data,
      .conv2d_backward_weights = conv2d_backward_weights,
      .max_pool2d = max_pool2d,
      .max_pool2d_backward = max_pool2d_backward,
      .lrn = lrn,
      .lrn_backward = lrn_backward,
      .linear = linear,
      .linear_backward_data = linear_backward_data,
      .linear_backward_weights = linear_backward_weights,
      .softmax_cross_entropy = softmax_cross_entropy,
      .softmax_cross_entropy_backward = softmax_cross_entropy_backward,
      .l2_loss = l2_loss,
      .sgd_step = sgd_step,
      .find_bad_gradients = find_bad_gradients,
      .update_loss_scale = update_loss_scale,
      .mixed =
          {
              .convert = mixed::convert,
              .add = mixed::add,
              .scale = mixed::scale,
              .relu = mixed::relu,
              .relu_backward = mixed::relu_backward,
              .bias = mixed::bias,
              .bias_backward = mixed::bias_backward,
              .conv2d = mixed::conv2d,
              .conv2d_backward_data = mixed::conv2d_backward_data,
              .conv2d_backward_weights = mixed::conv2d_backward_weights,
              .max_pool2d = mixed::max_pool2d,
              .max_pool2d_backward = mixed::max_pool2d_backward,
              .lrn = mixed::lrn,
              .lrn_backward = mixed::lrn_backward,
              .linear = mixed::linear,
              .linear_backward_data = mixed::linear_backward_data,
              .linear_backward_weights = mixed::linear_backward_weights,
          },
      .families = {},
  };
  // Families of the layers above core: each has one function that adds its kernels, named here.
  for (const auto add : {add_augment_kernels}) add(table);
  return table;
}

}  // namespace lockstep::cuda
