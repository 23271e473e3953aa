// The bias is added to every row; its gradient is the column sums.
#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/cuda_kernels.h"

namespace lockstep::cuda {

namespace {

template <typename T, int pack> __global__ void add_to_rows(T* y, const T* bias, Index rows, Index columns) {
  const Index column = column_of_thread<pack>();
  if (column >= columns) return;
  const auto added = pack_at<pack>(bias + column);
  for (Index row = row_of_thread(); row < rows; row += rows_of_grid()) {
    auto& at = pack_at<pack>(y + row * columns + column);
    auto values = at;
#pragma unroll
    for (int k = 0; k < pack; ++k) store(values.values[k], widen(added.values[k]), true);
    at = values;
  }
}

template <typename T, int pack> __global__ void sum_columns(const T* grad, float* sums, Index rows, Index columns) {
  sum_part_of_rows<1, pack>(rows, columns, sums, [&](Index row, Index column, float(&few)[1][pack]) {
    const auto grads = pack_at<pack>(grad + row * columns + column);
#pragma unroll
    for (int k = 0; k < pack; ++k) few[0][k] += widen(grads.values[k]);
  });
}

}  // namespace

void add_bias(Out y, In bias, Stream& stream) {
  const Index columns = bias.count();
  if (y.count() == 0) return;
  const Index rows = y.count() / columns;
  with_float(y.dtype, [&]<typename T>(T*) {
    const bool aligned =
        is_aligned_to_pack<T, kColumnPack>(y.as<T>()) && is_aligned_to_pack<T, kColumnPack>(bias.as<T>());
    with_column_pack(columns, aligned, [&]<int pack>() {
      const ColumnGrid grid(rows, columns, pack);
      LOCKSTEP_LAUNCH((add_to_rows<T, pack>), grid.blocks, grid.threads, 0, stream, y.as<T>(), bias.as<T>(), rows,
                      columns);
    });
  });
}

void bias_backward(In y_grad, Out bias_grad, Stream& stream) {
  const Index columns = bias_grad.count();
  if (columns == 0) return;
  const Index rows = y_grad.count() / columns;
  with_float(y_grad.dtype, [&]<typename T>(T*) {
    with_column_pack(columns, is_aligned_to_pack<T, kColumnPack>(y_grad.as<T>()), [&]<int pack>() {
      const ColumnSums<float> sums(rows, columns, pack, 1, stream);
      LOCKSTEP_LAUNCH((sum_columns<T, pack>), sums.grid().blocks, sums.grid().threads, 0, stream, y_grad.as<T>(),
                      sums.sums(), rows, columns);
      sums.store<1>({{{bias_grad.floats(), bias_grad.accumulate}}});
    });
  });
}

void use_bias(KernelTable& table) {
  table.bias = add_bias;
  table.bias_backward = bias_backward;
}

}  // namespace lockstep::cuda
