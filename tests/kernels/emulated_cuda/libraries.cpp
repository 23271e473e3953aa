// What nobody emulates: cuDNN's convolutions are the plain CPU kernels here; and the stream, which is nobody's.
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/mixed.h"
#include "kernels/cuda/stream.h"

namespace lockstep::cuda {

cudaStream_t native(Stream&) { return nullptr; }

void conv2d(const Conv2dShape& shape, const float* x, const float* weight, const float* bias, bool relu, float* y, Stream& stream) {
  reference_kernels().conv2d(shape, x, weight, bias, relu, y, stream);
}
void conv2d_backward_data(const Conv2dShape& shape, const float* y_grad, const float* weight, float* x_grad, bool accumulate,
                          Stream& stream) {
  reference_kernels().conv2d_backward_data(shape, y_grad, weight, x_grad, accumulate, stream);
}
void conv2d_backward_weights(const Conv2dShape& shape, const float* x, const float* y_grad, float* weight_grad, float* bias_grad,
                             bool accumulate_weight, bool accumulate_bias, Stream& stream) {
  reference_kernels().conv2d_backward_weights(shape, x, y_grad, weight_grad, bias_grad, accumulate_weight, accumulate_bias, stream);
}

namespace mixed {

void conv2d(DType type, const Conv2dShape& shape, const void* x, const void* weight, const void* bias, bool relu, void* y, Stream& stream) {
  reference_kernels().mixed.conv2d(type, shape, x, weight, bias, relu, y, stream);
}
void conv2d_backward_data(DType type, const Conv2dShape& shape, const void* y_grad, const void* weight, void* x_grad, bool accumulate,
                          Stream& stream) {
  reference_kernels().mixed.conv2d_backward_data(type, shape, y_grad, weight, x_grad, accumulate, stream);
}
void conv2d_backward_weights(DType type, const Conv2dShape& shape, const void* x, const void* y_grad, float* weight_grad, float* bias_grad,
                             bool accumulate_weight, bool accumulate_bias, Stream& stream) {
  reference_kernels().mixed.conv2d_backward_weights(type, shape, x, y_grad, weight_grad, bias_grad, accumulate_weight, accumulate_bias,
                                                    stream);
}

}  // namespace mixed

}  // namespace lockstep::cuda
