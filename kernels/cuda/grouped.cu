// One thread computes an element of y or of x_grad; neighbouring threads have neighbouring channels. The gradient of
// the weights: one block sums for one tap and 32 filters, one per lane; its warps share the rows of y. Sums have a
// fixed order, so results are reproducible bit for bit.
#include "kernels/cuda/grouped.h"

#include "kernels/cuda/windows.cuh"

namespace lockstep::cuda {

namespace {

constexpr int kFilters = 32;  // filters per block, one per lane
constexpr int kRowsAtOnce = kThreads / kFilters;

__device__ Index seen_by_filter(const Conv2dShape& s) { return s.in_channels / s.groups; }  // number of channels
__device__ Index filters_of_group(const Conv2dShape& s) { return s.out_channels / s.groups; }

// A convolution in groups, and the channels that a filter sees and the filters of a group.
template <typename Number> struct GroupedWindows {
  explicit GroupedWindows(const Conv2dShape& s) : of(s), seen(s.in_channels / s.groups), filters(s.group_filters()) {}
  // The first of the weights of a filter at a tap.
  __device__ Number weight_at(Number filter, Number row, Number column) const {
    return ((filter * of.rows.window.size() + row) * of.columns.window.size() + column) * seen.value();
  }
  AnyWindows<Number> of;
  Divisor<Number> seen, filters;
};

template <typename Number> __global__ void forward_in_groups(GroupedWindows<Number> grouped, const float* x,
                                                             const float* weight, float* y, Index count) {
  const AnyWindows<Number>& of = grouped.of;
  for (Index i = first_item(); i < count; i += stride_of_grid()) {
    const Position<Number> out = of.out.position_of(static_cast<Number>(i));
    const Number first = grouped.filters.quotient(out.item) * grouped.seen.value();
    float total = 0;
    for (Number r = 0; r < of.rows.window.size(); ++r) {
      const Number row = of.rows.begin_of(out.row) + r;
      if (!of.rows.is_inside(row)) continue;
      for (Number c = 0; c < of.columns.window.size(); ++c) {
        const Number column = of.columns.begin_of(out.column) + c;
        if (!of.columns.is_inside(column)) continue;
        const float* from = x + of.in.item_at({out.image, row, column, first});
        const float* taps = weight + grouped.weight_at(out.item, r, c);
        for (Number k = 0; k < grouped.seen.value(); ++k) total += from[k] * taps[k];
      }
    }
    y[i] = total;
  }
}

template <typename Number> __global__ void data_gradient_in_groups(GroupedWindows<Number> grouped, const float* y_grad,
                                                                   const float* weight, float* x_grad, Index count) {
  const AnyWindows<Number>& of = grouped.of;
  for (Index i = first_item(); i < count; i += stride_of_grid()) {
    const Position<Number> in = of.in.position_of(static_cast<Number>(i));
    const Divided<Number> group = grouped.seen.divide(in.item);
    const Number first = group.quotient * grouped.filters.value();  // of the filters that read this channel
    const auto rows = of.rows.outputs_of(in.row), columns = of.columns.outputs_of(in.column);
    float total = 0;
    for (Number row = rows.end - 1; row >= rows.begin; --row)
      for (Number column = columns.end - 1; column >= columns.begin; --column) {
        const float* from = y_grad + of.out.item_at({in.image, row, column, 0});
        const Number r = in.row - of.rows.begin_of(row), c = in.column - of.columns.begin_of(column);
        for (Number out = first; out < first + grouped.filters.value(); ++out)
          total += from[out] * weight[grouped.weight_at(out, r, c) + group.remainder];
      }
    x_grad[i] = total;
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

template <typename Call> void with_grouped(const Conv2dShape& s, Call&& call) {
  const Index of_x = s.batch * s.in_height * s.in_width * s.in_channels,
              of_y = s.batch * s.out_height * s.out_width * s.out_channels,
              of_weight = s.out_channels * s.kernel_height * s.kernel_width * s.group_channels();
  with_index_of(largest_number(s, std::max({of_x, of_y, of_weight})),
                [&]<typename Number>(Number) { call(GroupedWindows<Number>(s)); });
}

}  // namespace

void grouped_forward(const Conv2dShape& s, const float* x, const float* weight, float* y, Stream& stream) {
  const Index count = s.batch * s.out_height * s.out_width * s.out_channels;
  if (count == 0) return;
  with_grouped(s, [&]<typename Number>(const GroupedWindows<Number>& grouped) {
    LOCKSTEP_LAUNCH((forward_in_groups<Number>), blocks_for(count), kThreads, 0, stream, grouped, x, weight, y, count);
  });
}

void grouped_backward_data(const Conv2dShape& s, const float* y_grad, const float* weight, float* x_grad,
                           Stream& stream) {
  const Index count = s.batch * s.in_height * s.in_width * s.in_channels;
  if (count == 0) return;
  with_grouped(s, [&]<typename Number>(const GroupedWindows<Number>& grouped) {
    LOCKSTEP_LAUNCH((data_gradient_in_groups<Number>), blocks_for(count), kThreads, 0, stream, grouped, y_grad, weight,
                    x_grad, count);
  });
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
