// Max pooling, NHWC. Backward gathers: every input checks the windows that contain it for whether it was their maximum,
// so there are no atomics and results are reproducible bit for bit.
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/pool_position.cuh"

namespace lockstep::cuda {

namespace {

// Among equal values the first in row-major order is chosen; NaN is larger than any number; padding is never chosen.
template <typename T>
__global__ void max_pool(Pool2dShape shape, const T* x, T* y, std::uint16_t* argmax, Index count) {
  for (Index i = first_item(); i < count; i += stride_of_grid()) {
    const Position out = position_of(i, shape.out_height, shape.out_width, shape.channels);
    const T* image = x + out.image * shape.in_height * shape.in_width * shape.channels + out.channel;
    float best = -INFINITY;
    Index place = -1;
    for (Index r = 0; r < shape.window_height; ++r) {
      const Index row = out.row * shape.stride_height - shape.pad_top + r;
      if (row < 0 || row >= shape.in_height) continue;
      for (Index s = 0; s < shape.window_width; ++s) {
        const Index column = out.column * shape.stride_width - shape.pad_left + s;
        if (column < 0 || column >= shape.in_width) continue;
        const float value = widen(image[(row * shape.in_width + column) * shape.channels]);
        if (place < 0 || value > best || isnan(value)) {
          best = value;
          place = r * shape.window_width + s;
        }
      }
    }
    write(y[i], best);
    argmax[i] = static_cast<std::uint16_t>(place);
  }
}

template <typename T> __global__ void max_pool_backward(Pool2dShape shape, const T* y_grad, const std::uint16_t* argmax,
                                                        T* x_grad, bool accumulate, Index count) {
  for (Index i = first_item(); i < count; i += stride_of_grid()) {
    const Position in = position_of(i, shape.in_height, shape.in_width, shape.channels);
    const Index row = in.row + shape.pad_top, column = in.column + shape.pad_left;
    const Index last_row = min(row / shape.stride_height, shape.out_height - 1);
    const Index last_column = min(column / shape.stride_width, shape.out_width - 1);
    float sum = 0;
    for (Index r = first_window(row, shape.window_height, shape.stride_height); r <= last_row; ++r)
      for (Index s = first_window(column, shape.window_width, shape.stride_width); s <= last_column; ++s) {
        const Index out = ((in.image * shape.out_height + r) * shape.out_width + s) * shape.channels + in.channel;
        const Index place = (row - r * shape.stride_height) * shape.window_width + (column - s * shape.stride_width);
        if (argmax[out] == place) sum += widen(y_grad[out]);
      }
    store(x_grad[i], sum, accumulate);
  }
}

void max_pool2d(const Pool2dShape& shape, In x, Out y, std::uint16_t* argmax, Stream& stream) {
  const Index count = shape.batch * shape.out_height * shape.out_width * shape.channels;
  with_float(x.dtype, [&]<typename T>(T*) {
    if (count > 0)
      LOCKSTEP_LAUNCH((max_pool<T>), blocks_for(count), kThreads, 0, stream, shape, x.as<T>(), y.as<T>(), argmax,
                      count);
  });
}

void max_pool2d_backward(const Pool2dShape& shape, In y_grad, const std::uint16_t* argmax, Out x_grad, Stream& stream) {
  const Index count = shape.batch * shape.in_height * shape.in_width * shape.channels;
  with_float(y_grad.dtype, [&]<typename T>(T*) {
    if (count > 0)
      LOCKSTEP_LAUNCH((max_pool_backward<T>), blocks_for(count), kThreads, 0, stream, shape, y_grad.as<T>(), argmax,
                      x_grad.as<T>(), x_grad.accumulate, count);
  });
}

}  // namespace

void use_pool(KernelTable& table) {
  table.max_pool2d = max_pool2d;
  table.max_pool2d_backward = max_pool2d_backward;
}

}  // namespace lockstep::cuda
