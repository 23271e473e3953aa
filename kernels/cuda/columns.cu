// The windows of images are written as the rows of a matrix, and summed back.
#include "kernels/cuda/columns.h"

#include "kernels/cuda/windows.cuh"

namespace lockstep::cuda {

namespace {

// `taps`: the windows as images, with the channels of x.
template <typename Number>
__global__ void gather(AnyWindows<Number> of, Extents<Number> taps, const float* x, float* windows, Index count) {
  for (Index i = first_item(); i < count; i += stride_of_grid()) {
    const Position<Number> tap = taps.position_of(static_cast<Number>(i)), out = of.out.position_of_pixel(tap.image);
    const Number row = of.rows.begin_of(out.row) + tap.row, column = of.columns.begin_of(out.column) + tap.column;
    const bool is_inside = of.rows.is_inside(row) && of.columns.is_inside(column);
    windows[i] = is_inside ? x[of.in.item_at({out.image, row, column, tap.item})] : 0;
  }
}

template <typename Number>
__global__ void sum(AnyWindows<Number> of, Extents<Number> taps, const float* windows, float* x, Index count) {
  for (Index i = first_item(); i < count; i += stride_of_grid()) {
    const Position<Number> in = of.in.position_of(static_cast<Number>(i));
    const auto rows = of.rows.outputs_of(in.row), columns = of.columns.outputs_of(in.column);
    float total = 0;
    for (Number row = rows.end - 1; row >= rows.begin; --row)
      for (Number column = columns.end - 1; column >= columns.begin; --column) {
        const Number window = (in.image * of.rows.out + row) * of.columns.out + column;
        total += windows[taps.item_at(
            {window, in.row - of.rows.begin_of(row), in.column - of.columns.begin_of(column), in.item})];
      }
    x[i] = total;
  }
}

Index elements_of_windows(const Conv2dShape& s) {
  return s.batch * s.out_height * s.out_width * s.kernel_height * s.kernel_width * s.in_channels;
}

// Calls `call` with the Windows of a shape, and with the extents of one window.
template <typename Call> void with_taps(const Conv2dShape& s, Call&& call) {
  const Index of_x = s.batch * s.in_height * s.in_width * s.in_channels;
  with_index_of(largest_number(s, std::max(of_x, elements_of_windows(s))), [&]<typename Number>(Number) {
    call(AnyWindows<Number>(s), Extents<Number>(s.kernel_height, s.kernel_width, s.in_channels));
  });
}

}  // namespace

void gather_windows(const Conv2dShape& s, const float* x, float* windows, Stream& stream) {
  const Index count = elements_of_windows(s);
  if (count == 0) return;
  with_taps(s, [&]<typename Number>(const AnyWindows<Number>& of, const Extents<Number>& taps) {
    LOCKSTEP_LAUNCH((gather<Number>), blocks_for(count), kThreads, 0, stream, of, taps, x, windows, count);
  });
}

void sum_windows(const Conv2dShape& s, const float* windows, float* x, Stream& stream) {
  const Index count = s.batch * s.in_height * s.in_width * s.in_channels;
  if (count == 0) return;
  with_taps(s, [&]<typename Number>(const AnyWindows<Number>& of, const Extents<Number>& taps) {
    LOCKSTEP_LAUNCH((sum<Number>), blocks_for(count), kThreads, 0, stream, of, taps, windows, x, count);
  });
}

}  // namespace lockstep::cuda
