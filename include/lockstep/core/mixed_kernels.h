// The operators of a kernel table on 16-bit floats: float16 and bfloat16 (`type`, for every pointer to void).
//
// Activations, their gradients and the copies of weights and biases that an operator reads are 16 bits wide; sums run in float32 and are
// rounded once, to nearest, ties to even. Gradients of weights and biases are float32: they go straight into their slots.
// Otherwise as in kernels.h.
#pragma once

#include <cstdint>

#include "lockstep/core/dtype.h"
#include "lockstep/core/operator_shapes.h"

namespace lockstep {

class Stream;

struct MixedKernelTable {
  // Among float32, float16 and bfloat16. Accumulating adds in float32 and rounds once.
  void (*convert)(DType from, const void* in, DType to, void* out, std::int64_t count, bool accumulate, Stream&);

  void (*add)(DType type, const void* a, const void* b, void* out, std::int64_t count, Stream&);
  void (*scale)(DType type, const void* in, float factor, void* out, std::int64_t count, bool accumulate, Stream&);
  void (*relu)(DType type, const void* in, void* out, std::int64_t count, Stream&);
  void (*relu_backward)(DType type, const void* y, void* grad, std::int64_t count, Stream&);
  void (*bias)(DType type, void* y, const void* bias, std::int64_t rows, std::int64_t channels, Stream&);
  void (*bias_backward)(DType type, const void* y_grad, float* bias_grad, std::int64_t rows, std::int64_t channels, bool accumulate,
                        Stream&);

  void (*conv2d)(DType type, const Conv2dShape&, const void* x, const void* weight, const void* bias, bool relu, void* y, Stream&);
  void (*conv2d_backward_data)(DType type, const Conv2dShape&, const void* y_grad, const void* weight, void* x_grad, bool accumulate,
                               Stream&);
  void (*conv2d_backward_weights)(DType type, const Conv2dShape&, const void* x, const void* y_grad, float* weight_grad, float* bias_grad,
                                  bool accumulate_weight, bool accumulate_bias, Stream&);

  void (*max_pool2d)(DType type, const Pool2dShape&, const void* x, void* y, std::uint16_t* argmax, Stream&);
  void (*max_pool2d_backward)(DType type, const Pool2dShape&, const void* y_grad, const std::uint16_t* argmax, void* x_grad,
                              bool accumulate, Stream&);

  void (*lrn)(DType type, const LrnParams&, const void* x, void* y, float* scale, Stream&);
  void (*lrn_backward)(DType type, const LrnParams&, const void* x, const void* y, const float* scale, const void* y_grad, void* x_grad,
                       bool accumulate, Stream&);

  void (*linear)(DType type, const LinearShape&, const void* x, const void* weight, const void* bias, bool relu, void* y, Stream&);
  void (*linear_backward_data)(DType type, const LinearShape&, const void* y_grad, const void* weight, void* x_grad, bool accumulate,
                               Stream&);
  void (*linear_backward_weights)(DType type, const LinearShape&, const void* x, const void* y_grad, float* weight_grad, float* bias_grad,
                                  bool accumulate_weight, bool accumulate_bias, Stream&);
};

}  // namespace lockstep
