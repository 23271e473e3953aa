// Average pooling, NHWC. Backward gathers: every input sums over the windows that contain it, so there are no atomics
// and results are reproducible bit for bit.
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/pool_position.cuh"

namespace lockstep::cuda {

namespace {

constexpr Index kMostInFloat = 64;  // number of pixels that are summed in float32

// The part of a window that lies inside the image, in one direction: [begin, end).
struct Inside {
  Index begin, end;
};
__device__ Inside inside(Index out, Index stride, Index pad, Index window, Index size) {
  const Index start = out * stride - pad;
  return {start < 0 ? 0 : start, min(start + window, size)};
}

__device__ float divisor_of(const Pool2dShape& s, bool count_padding, Inside rows, Inside columns) {
  return static_cast<float>(count_padding ? s.window_height * s.window_width
                                          : (rows.end - rows.begin) * (columns.end - columns.begin));
}
__device__ Inside rows_of(const Pool2dShape& s, Index i) {
  return inside(i, s.stride_height, s.pad_top, s.window_height, s.in_height);
}
__device__ Inside columns_of(const Pool2dShape& s, Index j) {
  return inside(j, s.stride_width, s.pad_left, s.window_width, s.in_width);
}

template <typename T> __global__ void avg_pool(Pool2dShape s, bool count_padding, const T* x, T* y, Index count) {
  for (Index i = first_item(); i < count; i += stride_of_grid()) {
    const Position out = position_of(i, s.out_height, s.out_width, s.channels);
    const T* image = x + out.image * s.in_height * s.in_width * s.channels + out.channel;
    const Inside rows = rows_of(s, out.row), columns = columns_of(s, out.column);
    float sum = 0;
    double total = 0;  // sum over the pieces of a large window, so that the error does not grow with the plane
    Index pixels = 0;
    for (Index row = rows.begin; row < rows.end; ++row)
      for (Index column = columns.begin; column < columns.end; ++column) {
        sum += widen(image[(row * s.in_width + column) * s.channels]);
        if (++pixels % kMostInFloat != 0) continue;
        total += sum;
        sum = 0;
      }
    if (pixels >= kMostInFloat) sum = static_cast<float>(total + sum);
    write(y[i], sum / divisor_of(s, count_padding, rows, columns));
  }
}

template <typename T> __global__ void avg_pool_backward(Pool2dShape s, bool count_padding, const T* y_grad, T* x_grad,
                                                        bool accumulate, Index count) {
  for (Index i = first_item(); i < count; i += stride_of_grid()) {
    const Position in = position_of(i, s.in_height, s.in_width, s.channels);
    const Index row = in.row + s.pad_top, column = in.column + s.pad_left;
    const Index last_row = min(row / s.stride_height, s.out_height - 1),
                last_column = min(column / s.stride_width, s.out_width - 1);
    float sum = 0;
    for (Index r = first_window(row, s.window_height, s.stride_height); r <= last_row; ++r)
      for (Index c = first_window(column, s.window_width, s.stride_width); c <= last_column; ++c)
        sum += widen(y_grad[((in.image * s.out_height + r) * s.out_width + c) * s.channels + in.channel]) /
               divisor_of(s, count_padding, rows_of(s, r), columns_of(s, c));
    store(x_grad[i], sum, accumulate);
  }
}

void avg_pool2d(const Pool2dShape& shape, bool count_padding, In x, Out y, Stream& stream) {
  const Index count = y.count();
  with_float(x.dtype, [&]<typename T>(T*) {
    if (count > 0)
      LOCKSTEP_LAUNCH((avg_pool<T>), blocks_for(count), kThreads, 0, stream, shape, count_padding, x.as<T>(), y.as<T>(),
                      count);
  });
}

void avg_pool2d_backward(const Pool2dShape& shape, bool count_padding, In y_grad, Out x_grad, Stream& stream) {
  const Index count = x_grad.count();
  with_float(y_grad.dtype, [&]<typename T>(T*) {
    if (count > 0)
      LOCKSTEP_LAUNCH((avg_pool_backward<T>), blocks_for(count), kThreads, 0, stream, shape, count_padding,
                      y_grad.as<T>(), x_grad.as<T>(), x_grad.accumulate, count);
  });
}

}  // namespace

void use_avg_pool(KernelTable& table) {
  table.avg_pool2d = avg_pool2d;
  table.avg_pool2d_backward = avg_pool2d_backward;
}

}  // namespace lockstep::cuda
