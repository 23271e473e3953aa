// Average pooling, NHWC. Backward gathers: every input sums over the windows that contain it, so there are no atomics
// and results are reproducible bit for bit.
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/windows.cuh"

namespace lockstep::cuda {

namespace {

constexpr int kMostInFloat = 64;  // number of pixels that are summed in float32

// The part of an output's window that lies inside the image, in one direction: [begin, end).
template <typename Direction> __device__ auto inside(const Direction& direction, decltype(direction.in) out) {
  const auto start = direction.begin_of(out);
  return typename Direction::Range{max(start, static_cast<decltype(start)>(0)),
                                   min(start + direction.window.size(), direction.in)};
}

template <typename Of, typename Range>
__device__ float divisor_of(const Of& of, bool count_padding, const Range& rows, const Range& columns) {
  // As floats: a window with padding may have more pixels than the array has elements.
  if (count_padding) return static_cast<float>(of.rows.window.size()) * static_cast<float>(of.columns.window.size());
  return static_cast<float>((rows.end - rows.begin) * (columns.end - columns.begin));
}

template <typename T, typename Number>
__global__ void avg_pool(AnyWindows<Number> of, bool count_padding, const T* x, T* y, Index count) {
  for (Index i = first_item(); i < count; i += stride_of_grid()) {
    const Position<Number> out = of.out.position_of(static_cast<Number>(i));
    const auto rows = inside(of.rows, out.row), columns = inside(of.columns, out.column);
    float sum = 0;
    double total = 0;  // sum over the pieces of a large window, so that the error does not grow with the plane
    Number pixels = 0;
    for (Number row = rows.begin; row < rows.end; ++row)
      for (Number column = columns.begin; column < columns.end; ++column) {
        sum += widen(x[of.in.item_at({out.image, row, column, out.item})]);
        if (++pixels % kMostInFloat != 0) continue;
        total += sum;
        sum = 0;
      }
    if (pixels >= kMostInFloat) sum = static_cast<float>(total + sum);
    write(y[i], sum / divisor_of(of, count_padding, rows, columns));
  }
}

template <typename T, typename Number> __global__ void avg_pool_backward(AnyWindows<Number> of, bool count_padding,
                                                                         const T* y_grad, T* x_grad, bool accumulate,
                                                                         Index count) {
  for (Index i = first_item(); i < count; i += stride_of_grid()) {
    const Position<Number> in = of.in.position_of(static_cast<Number>(i));
    const auto rows = of.rows.outputs_of(in.row), columns = of.columns.outputs_of(in.column);
    float sum = 0;
    for (Number r = rows.begin; r < rows.end; ++r)
      for (Number c = columns.begin; c < columns.end; ++c)
        sum += widen(y_grad[of.out.item_at({in.image, r, c, in.item})]) /
               divisor_of(of, count_padding, inside(of.rows, r), inside(of.columns, c));
    store(x_grad[i], sum, accumulate);
  }
}

void avg_pool2d(const Pool2dShape& shape, bool count_padding, In x, Out y, Stream& stream) {
  const Index count = y.count(), largest = largest_number(shape, std::max(x.count(), count));
  if (count == 0) return;
  with_float(x.dtype, [&]<typename T>(T*) {
    with_index_of(largest, [&]<typename Number>(Number) {
      LOCKSTEP_LAUNCH((avg_pool<T, Number>), blocks_for(count), kThreads, 0, stream, AnyWindows<Number>(shape, 1),
                      count_padding, x.as<T>(), y.as<T>(), count);
    });
  });
}

void avg_pool2d_backward(const Pool2dShape& shape, bool count_padding, In y_grad, Out x_grad, Stream& stream) {
  const Index count = x_grad.count(), largest = largest_number(shape, std::max(y_grad.count(), count));
  if (count == 0) return;
  with_float(y_grad.dtype, [&]<typename T>(T*) {
    with_index_of(largest, [&]<typename Number>(Number) {
      LOCKSTEP_LAUNCH((avg_pool_backward<T, Number>), blocks_for(count), kThreads, 0, stream,
                      AnyWindows<Number>(shape, 1), count_padding, y_grad.as<T>(), x_grad.as<T>(), x_grad.accumulate,
                      count);
    });
  });
}

}  // namespace

void use_avg_pool(KernelTable& table) {
  table.avg_pool2d = avg_pool2d;
  table.avg_pool2d_backward = avg_pool2d_backward;
}

}  // namespace lockstep::cuda
