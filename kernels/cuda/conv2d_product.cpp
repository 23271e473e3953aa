#include <algorithm>

#include "kernels/cuda/columns.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/libraries.h"
#include "kernels/cuda/stream.h"

namespace lockstep::cuda {

namespace {

// Calls `call(part, windows, first x, first y)` for groups of images: their shape, memory for their windows, and
// pointers to their first elements.
template <typename Call> void in_parts(const Conv2dShape& s, Stream& stream, Call&& call) {
  const Index of_x = s.in_height * s.in_width * s.in_channels, of_y = s.out_height * s.out_width * s.out_channels;
  const Index of_windows = s.out_height * s.out_width * s.kernel_height * s.kernel_width * s.in_channels;
  const auto limit = static_cast<Index>(math_settings().workspace_bytes / sizeof(float));
  const Index images = std::clamp<Index>(limit / std::max<Index>(of_windows, 1), 1, std::max<Index>(s.batch, 1));
  const Scratch windows(stream, static_cast<std::size_t>(images * of_windows) * sizeof(float));
  for (Index first = 0; first < s.batch; first += images) {
    Conv2dShape part = s;
    part.batch = std::min(images, s.batch - first);
    call(part, windows.as<float>(), first * of_x, first * of_y);
  }
}

// The shapes of the product's operands: windows * weight^T = y.
Shape windows_of(const Conv2dShape& s) {
  return {s.batch * s.out_height * s.out_width, s.kernel_height * s.kernel_width * s.in_channels};
}
Shape weight_of(const Conv2dShape& s) { return {s.out_channels, s.kernel_height * s.kernel_width * s.in_channels}; }
Shape y_of(const Conv2dShape& s) { return {s.batch * s.out_height * s.out_width, s.out_channels}; }

}  // namespace

void product_forward(const Conv2dShape& shape, const float* x, const float* weight, float* y, Stream& stream) {
  in_parts(shape, stream, [&](const Conv2dShape& part, float* windows, Index first_x, Index first_y) {
    gather_windows(part, x + first_x, windows, stream);
    linear({windows, windows_of(part)}, {weight, weight_of(part)}, {}, false, {y + first_y, y_of(part)}, stream);
  });
}

void product_backward_data(const Conv2dShape& shape, const float* y_grad, const float* weight, float* x_grad,
                           Stream& stream) {
  in_parts(shape, stream, [&](const Conv2dShape& part, float* windows, Index first_x, Index first_y) {
    linear_backward_data({y_grad + first_y, y_of(part)}, {weight, weight_of(part)}, {windows, windows_of(part)},
                         stream);
    sum_windows(part, windows, x_grad + first_x, stream);
  });
}

void product_backward_weights(const Conv2dShape& shape, const float* x, const float* y_grad, float* weight_grad,
                              Stream& stream) {
  in_parts(shape, stream, [&](const Conv2dShape& part, float* windows, Index first_x, Index first_y) {
    gather_windows(part, x + first_x, windows, stream);
    linear_backward_weights({windows, windows_of(part)}, {y_grad + first_y, y_of(part)},
                            {weight_grad, weight_of(part), first_x != 0}, {}, stream);
  });
}

}  // namespace lockstep::cuda
