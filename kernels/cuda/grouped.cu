// One thread computes an element of y or of x_grad; neighbouring threads have neighbouring channels. The gradient of
// the weights: one block sums for one tap and 32 filters, one per lane; its warps share the rows of y. Sums have a
// fixed order, so results are reproducible bit for bit.
#include "kernels/cuda/grouped.h"

#include "kernels/cuda/launch.cuh"

namespace lockstep::cuda {

namespace {

constexpr int kFilters = 32;  // filters per block, one per lane
constexpr int kRowsAtOnce = kThreads / kFilters;

__device__ Index seen_by_filter(const Conv2dShape& s) { return s.in_channels / s.groups; }  // number of channels
__device__ Index filters_of_group(const Conv2dShape& s) { return s.out_channels / s.groups; }

__global__ void forward_in_groups(Conv2dShape s, const float* x, const float* weight, float* y, Index count) {
  const Index seen = seen_by_filter(s), filters = filters_of_group(s);
  for (Index at = first_item(); at < count; at += stride_of_grid()) {
    const Index out = at % s.out_channels, pixel = at / s.out_channels;
    const Index column = pixel % s.out_width, row = pixel / s.out_width % s.out_height,
                image = pixel / s.out_width / s.out_height;
    float total = 0;
    for (Index r = 0; r < s.kernel_height; ++r) {
      const Index in_row = row * s.stride_height - s.pad_top + r;
      if (in_row < 0 || in_row >= s.in_height) continue;
      for (Index c = 0; c < s.kernel_width; ++c) {
        const Index in_column = column * s.stride_width - s.pad_left + c;
        if (in_column < 0 || in_column >= s.in_width) continue;
        const float* from =
            x + ((image * s.in_height + in_row) * s.in_width + in_column) * s.in_channels + out / filters * seen;
        const float* taps = weight + ((out * s.kernel_height + r) * s.kernel_width + c) * seen;
        for (Index k = 0; k < seen; ++k) total += from[k] * taps[k];
      }
    }
    y[at] = total;
  }
}

__global__ void data_gradient_in_groups(Conv2dShape s, const float* y_grad, const float* weight, float* x_grad,
                                        Index count) {
  const Index seen = seen_by_filter(s), filters = filters_of_group(s);
  for (Index at = first_item(); at < count; at += stride_of_grid()) {
    const Index channel = at % s.in_channels, pixel = at / s.in_channels, image = pixel / s.in_width / s.in_height;
    const Index column = pixel % s.in_width + s.pad_left, row = pixel / s.in_width % s.in_height + s.pad_top;
    const Index first = channel / seen * filters;  // first of the filters that read this channel
    float total = 0;
    for (Index r = row % s.stride_height; r < s.kernel_height && r <= row; r += s.stride_height) {
      const Index out_row = (row - r) / s.stride_height;
      if (out_row >= s.out_height) continue;
      for (Index c = column % s.stride_width; c < s.kernel_width && c <= column; c += s.stride_width) {
        const Index out_column = (column - c) / s.stride_width;
        if (out_column >= s.out_width) continue;
        const float* from = y_grad + ((image * s.out_height + out_row) * s.out_width + out_column) * s.out_channels;
        for (Index out = first; out < first + filters; ++out)
          total += from[out] * weight[((out * s.kernel_height + r) * s.kernel_width + c) * seen + channel % seen];
      }
    }
    x_grad[at] = total;
  }
}

// Blocks are (32 filters, tap, channel of the group), with the filters slowest.
__global__ void weight_gradient_in_groups(Conv2dShape s, const float* x, const float* y_grad, float* weight_grad,
                                          Index blocks) {
  __shared__ double sums[kThreads];
  const int lane = threadIdx.x % kFilters, warp = threadIdx.x / kFilters;
  const Index seen = seen_by_filter(s), filters = filters_of_group(s),
              of_a_filter = s.kernel_height * s.kernel_width * seen;
  for (Index block = blockIdx.x; block < blocks; block += gridDim.x) {
    const Index out = block / of_a_filter * kFilters + lane, at = block % of_a_filter;
    const Index r = at / seen / s.kernel_width, c = at / seen % s.kernel_width;
    double total = 0;
    for (Index row = warp; out < s.out_channels && row < s.batch * s.out_height; row += kRowsAtOnce) {
      const Index in_row = row % s.out_height * s.stride_height - s.pad_top + r;
      if (in_row < 0 || in_row >= s.in_height) continue;
      const float* from = x + (row / s.out_height * s.in_height + in_row) * s.in_width * s.in_channels +
                          out / filters * seen + at % seen;
      const float* grad = y_grad + row * s.out_width * s.out_channels + out;
      float of_row = 0;
      for (Index column = 0; column < s.out_width; ++column) {
        const Index in_column = column * s.stride_width - s.pad_left + c;
        if (in_column >= 0 && in_column < s.in_width)
          of_row += from[in_column * s.in_channels] * grad[column * s.out_channels];
      }
      total += of_row;
    }
    sums[threadIdx.x] = total;
    __syncthreads();
    if (warp == 0 && out < s.out_channels) {
      for (int other = 1; other < kRowsAtOnce; ++other) total += sums[other * kFilters + lane];
      weight_grad[out * of_a_filter + at] = static_cast<float>(total);
    }
    __syncthreads();
  }
}

}  // namespace

void grouped_forward(const Conv2dShape& s, const float* x, const float* weight, float* y, Stream& stream) {
  const Index count = s.batch * s.out_height * s.out_width * s.out_channels;
  if (count > 0) LOCKSTEP_LAUNCH(forward_in_groups, blocks_for(count), kThreads, 0, stream, s, x, weight, y, count);
}

void grouped_backward_data(const Conv2dShape& s, const float* y_grad, const float* weight, float* x_grad,
                           Stream& stream) {
  const Index count = s.batch * s.in_height * s.in_width * s.in_channels;
  if (count > 0)
    LOCKSTEP_LAUNCH(data_gradient_in_groups, blocks_for(count), kThreads, 0, stream, s, y_grad, weight, x_grad, count);
}

void grouped_backward_weights(const Conv2dShape& s, const float* x, const float* y_grad, float* weight_grad,
                              Stream& stream) {
  const Index blocks =
      (s.out_channels + kFilters - 1) / kFilters * s.kernel_height * s.kernel_width * s.group_channels();
  if (blocks > 0)
    LOCKSTEP_LAUNCH(weight_gradient_in_groups, blocks_for(blocks, 1), kThreads, 0, stream, s, x, y_grad, weight_grad,
                    blocks);
}

}  // namespace lockstep::cuda
