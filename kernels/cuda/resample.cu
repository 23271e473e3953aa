// Images of another size, NHWC. Backward gathers: every input sums over the outputs that read it, so there are no
// atomics and results are reproducible bit for bit.
#ifdef __CUDACC__
#define LOCKSTEP_HOST_DEVICE __host__ __device__
#endif

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/windows.cuh"
#include "kernels/resample_rule.h"

namespace lockstep::cuda {

namespace {

struct Resampled {
  explicit Resampled(const Resample2dShape& s)
      : in(s.in_height, s.in_width, s.channels),
        out(s.out_height, s.out_width, s.channels),
        rows(rows_of(s)),
        columns(columns_of(s)) {}
  Extents<Index> in, out;
  ResampleAxis rows, columns;
};

template <typename T> __global__ void resample(Resampled of, const T* x, T* y, Index count) {
  for (Index i = first_item(); i < count; i += stride_of_grid()) {
    const Position<Index> out = of.out.position_of(i);
    const ResampleTaps down = of.rows.taps_of(out.row), across = of.columns.taps_of(out.column);
    float sum = 0;
    for (Index row = down.begin; row < down.end; ++row) {
      float of_row = 0;
      for (Index column = across.begin; column < across.end; ++column)
        of_row += across.weight_of(column) * widen(x[of.in.item_at({out.image, row, column, out.item})]);
      sum += down.weight_of(row) * of_row;
    }
    write(y[i], sum);
  }
}

template <typename T>
__global__ void resample_backward(Resampled of, const T* y_grad, T* x_grad, bool accumulate, Index count) {
  for (Index i = first_item(); i < count; i += stride_of_grid()) {
    const Position<Index> in = of.in.position_of(i);
    const ResampleAxis::Readers rows = of.rows.readers_of(in.row), columns = of.columns.readers_of(in.column);
    float sum = 0;
    for (Index row = rows.first; row < rows.end; ++row) {
      float of_row = 0;
      for (Index column = columns.first; column < columns.end; ++column)
        of_row += of.columns.taps_of(column).weight_of(in.column) *
                  widen(y_grad[of.out.item_at({in.image, row, column, in.item})]);
      sum += of.rows.taps_of(row).weight_of(in.row) * of_row;
    }
    store(x_grad[i], sum, accumulate);
  }
}

void resample2d(const Resample2dShape& shape, In x, Out y, Stream& stream) {
  const Index count = y.count();
  if (count == 0) return;
  with_float(x.dtype, [&]<typename T>(T*) {
    LOCKSTEP_LAUNCH((resample<T>), blocks_for(count), kThreads, 0, stream, Resampled(shape), x.as<T>(), y.as<T>(),
                    count);
  });
}

void resample2d_backward(const Resample2dShape& shape, In y_grad, Out x_grad, Stream& stream) {
  const Index count = x_grad.count();
  if (count == 0) return;
  with_float(y_grad.dtype, [&]<typename T>(T*) {
    LOCKSTEP_LAUNCH((resample_backward<T>), blocks_for(count), kThreads, 0, stream, Resampled(shape), y_grad.as<T>(),
                    x_grad.as<T>(), x_grad.accumulate, count);
  });
}

}  // namespace

void use_resample(KernelTable& table) {
  table.resample2d = resample2d;
  table.resample2d_backward = resample2d_backward;
}

}  // namespace lockstep::cuda
