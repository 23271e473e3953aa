// The kernel table: the operators that a device provides, on raw memory. The second half of the device seam.
//
// Conventions, for every entry:
//   - pointers are on the table's device, activations are NHWC, convolution weights OHWI, linear weights (out, in);
//   - work is ordered on the given stream; the CPU's kernels have finished when they return;
//   - outputs named *_grad are written, or added to when `accumulate` is true: gradients go straight into their slot
//     in a bucket, so that no copy is made;
//   - pointers are aligned to 16 bytes, those to floats that elementwise operators and optimizers take, and gradients of parameters, to 4;
//   - outputs never alias inputs unless the entry says "in place".
#pragma once

#include <cstdint>
#include <span>

#include "lockstep/core/kernel_families.h"
#include "lockstep/core/mixed_kernels.h"
#include "lockstep/core/operator_shapes.h"

namespace lockstep {

class Stream;

struct KernelTable {
  // -- elementwise; `count` elements
  void (*fill)(float* out, float value, std::int64_t count, Stream&);
  void (*add)(const float* a, const float* b, float* out, std::int64_t count, Stream&);
  void (*accumulate)(float* sum, const float* addend, std::int64_t count, Stream&);  // sum += addend
  void (*scale)(const float* in, float factor, float* out, std::int64_t count, bool accumulate, Stream&);
  void (*scale_by)(const float* in, const float* factor, float* out, std::int64_t count, bool accumulate, Stream&);  // the device's factor
  void (*relu)(const float* in, float* out, std::int64_t count, Stream&);
  // out_grad = y > 0 ? out_grad : 0, in place: `y` is ReLU's output
  void (*relu_backward)(const float* y, float* grad, std::int64_t count, Stream&);

  // -- bias: y (rows, channels) += bias (channels), in place; bias_grad = column sums of y_grad
  void (*bias)(float* y, const float* bias, std::int64_t rows, std::int64_t channels, Stream&);
  void (*bias_backward)(const float* y_grad, float* bias_grad, std::int64_t rows, std::int64_t channels, bool accumulate, Stream&);

  // -- convolution; `bias` may be null; `relu` clamps the result at 0
  void (*conv2d)(const Conv2dShape&, const float* x, const float* weight, const float* bias, bool relu, float* y, Stream&);
  void (*conv2d_backward_data)(const Conv2dShape&, const float* y_grad, const float* weight, float* x_grad, bool accumulate, Stream&);
  // bias_grad may be null
  void (*conv2d_backward_weights)(const Conv2dShape&, const float* x, const float* y_grad, float* weight_grad, float* bias_grad,
                                  bool accumulate_weight, bool accumulate_bias, Stream&);

  // -- max pooling; argmax holds, for each output, the winner's place in its window (row * window_width + column; the
  // first of equals; windows of up to 65,535 elements, each with a pixel in it: checked by the operator above)
  void (*max_pool2d)(const Pool2dShape&, const float* x, float* y, std::uint16_t* argmax, Stream&);
  void (*max_pool2d_backward)(const Pool2dShape&, const float* y_grad, const std::uint16_t* argmax, float* x_grad, bool accumulate,
                              Stream&);

  // -- local response normalisation; `scale` keeps bias + alpha * sum for backward
  void (*lrn)(const LrnParams&, const float* x, float* y, float* scale, Stream&);
  void (*lrn_backward)(const LrnParams&, const float* x, const float* y, const float* scale, const float* y_grad, float* x_grad,
                       bool accumulate, Stream&);

  // -- linear layers; `bias` may be null; `relu` clamps the result at 0
  void (*linear)(const LinearShape&, const float* x, const float* weight, const float* bias, bool relu, float* y, Stream&);
  void (*linear_backward_data)(const LinearShape&, const float* y_grad, const float* weight, float* x_grad, bool accumulate, Stream&);
  void (*linear_backward_weights)(const LinearShape&, const float* x, const float* y_grad, float* weight_grad, float* bias_grad,
                                  bool accumulate_weight, bool accumulate_bias, Stream&);

  // -- losses. loss (one float) = mean over the batch of -log softmax(logits)[label]; probabilities (batch, classes) are
  // kept for backward. Labels lie in [0, classes): checked by the operator above.
  void (*softmax_cross_entropy)(const float* logits, const std::int64_t* labels, std::int64_t batch, std::int64_t classes, float* loss,
                                float* probabilities, Stream&);
  void (*softmax_cross_entropy_backward)(const float* probabilities, const std::int64_t* labels, std::int64_t batch, std::int64_t classes,
                                         const float* loss_grad, float* logits_grad, bool accumulate, Stream&);
  // loss = sum x^2 / 2 (TensorFlow's tf.nn.l2_loss); its gradient is scale_by's
  void (*l2_loss)(const float* x, std::int64_t count, float* loss, Stream&);

  // -- optimizers: one pass over all parameters
  void (*sgd_step)(std::span<const SgdTensor> tensors, const SgdParams&, Stream&);
  // found_bad = 1 when one of the gradients is infinite or no number; left as it is otherwise
  void (*find_bad_gradients)(std::span<const SgdTensor> tensors, LossScaleState* state, Stream&);
  void (*update_loss_scale)(const LossScaleRule&, LossScaleState* state, Stream&);  // after the step; found_bad = 0

  // -- the same operators on 16-bit floats
  MixedKernelTable mixed;

  // -- operators of the layers above core; last, behind the pointers
  KernelFamilies families;
};

// The plain kernels, on the CPU: the oracle of every other device and of the faster CPU kernels.
const KernelTable& reference_kernels();

}  // namespace lockstep
