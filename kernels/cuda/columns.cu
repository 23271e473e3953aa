// The windows of images are written as the rows of a matrix, and summed back.
#include "kernels/cuda/columns.h"

#include "kernels/cuda/launch.cuh"

namespace lockstep::cuda {

namespace {

__global__ void gather(Conv2dShape s, const float* x, float* windows, Index count) {
  for (Index i = first_item(); i < count; i += stride_of_grid()) {
    const Index channel = i % s.in_channels, column_of_kernel = i / s.in_channels % s.kernel_width;
    const Index row_of_kernel = i / s.in_channels / s.kernel_width % s.kernel_height;
    const Index window = i / s.in_channels / s.kernel_width / s.kernel_height;
    const Index image = window / s.out_width / s.out_height;
    const Index row = window / s.out_width % s.out_height * s.stride_height - s.pad_top + row_of_kernel;
    const Index column = window % s.out_width * s.stride_width - s.pad_left + column_of_kernel;
    const bool is_inside = row >= 0 && row < s.in_height && column >= 0 && column < s.in_width;
    windows[i] = is_inside ? x[((image * s.in_height + row) * s.in_width + column) * s.in_channels + channel] : 0;
  }
}

__global__ void sum(Conv2dShape s, const float* windows, float* x, Index count) {
  for (Index i = first_item(); i < count; i += stride_of_grid()) {
    const Index channel = i % s.in_channels, pixel = i / s.in_channels;
    const Index column = pixel % s.in_width + s.pad_left, row = pixel / s.in_width % s.in_height + s.pad_top;
    const Index image = pixel / s.in_width / s.in_height;
    float total = 0;
    for (Index r = row % s.stride_height; r < s.kernel_height && r <= row; r += s.stride_height) {
      const Index out_row = (row - r) / s.stride_height;
      if (out_row >= s.out_height) continue;
      for (Index c = column % s.stride_width; c < s.kernel_width && c <= column; c += s.stride_width) {
        const Index out_column = (column - c) / s.stride_width;
        if (out_column >= s.out_width) continue;
        const Index window = (image * s.out_height + out_row) * s.out_width + out_column;
        total += windows[((window * s.kernel_height + r) * s.kernel_width + c) * s.in_channels + channel];
      }
    }
    x[i] = total;
  }
}

}  // namespace

void gather_windows(const Conv2dShape& s, const float* x, float* windows, Stream& stream) {
  const Index count = s.batch * s.out_height * s.out_width * s.kernel_height * s.kernel_width * s.in_channels;
  if (count > 0) LOCKSTEP_LAUNCH(gather, blocks_for(count), kThreads, 0, stream, s, x, windows, count);
}

void sum_windows(const Conv2dShape& s, const float* windows, float* x, Stream& stream) {
  const Index count = s.batch * s.in_height * s.in_width * s.in_channels;
  if (count > 0) LOCKSTEP_LAUNCH(sum, blocks_for(count), kThreads, 0, stream, s, windows, x, count);
}

}  // namespace lockstep::cuda
