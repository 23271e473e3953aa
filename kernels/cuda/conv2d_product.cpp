#include <algorithm>

#include "kernels/cuda/columns.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/libraries.h"
#include "kernels/cuda/stream.h"

namespace lockstep::cuda {

namespace {

// Calls `call(part, windows, first x, first y)` for some images at a time: their shape, memory for their windows, where they begin.
template <typename Call>
void in_parts(const Conv2dShape& s, Stream& stream, Call&& call) {
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

LinearShape as_product(const Conv2dShape& s) {
  return {s.batch * s.out_height * s.out_width, s.kernel_height * s.kernel_width * s.in_channels, s.out_channels};
}

}  // namespace

void product_forward(const Conv2dShape& shape, const float* x, const float* weight, float* y, Stream& stream) {
  in_parts(shape, stream, [&](const Conv2dShape& part, float* windows, Index first_x, Index first_y) {
    gather_windows(part, x + first_x, windows, stream);
    linear(as_product(part), windows, weight, nullptr, false, y + first_y, stream);
  });
}

void product_backward_data(const Conv2dShape& shape, const float* y_grad, const float* weight, float* x_grad, Stream& stream) {
  in_parts(shape, stream, [&](const Conv2dShape& part, float* windows, Index first_x, Index first_y) {
    linear_backward_data(as_product(part), y_grad + first_y, weight, windows, false, stream);
    sum_windows(part, windows, x_grad + first_x, stream);
  });
}

void product_backward_weights(const Conv2dShape& shape, const float* x, const float* y_grad, float* weight_grad, Stream& stream) {
  in_parts(shape, stream, [&](const Conv2dShape& part, float* windows, Index first_x, Index first_y) {
    gather_windows(part, x + first_x, windows, stream);
    linear_backward_weights(as_product(part), windows, y_grad + first_y, weight_grad, nullptr, first_x != 0, false, stream);
  });
}

}  // namespace lockstep::cuda
