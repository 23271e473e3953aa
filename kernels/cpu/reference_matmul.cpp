// Batches of matrix products.
#include "kernels/cpu/reference.h"

namespace lockstep::reference {

namespace {

void matmul(In left, bool transpose_left, In right, bool transpose_right, Out out, Stream&) {
  const Index batch = out.shape[0], rows = out.shape[1], columns = out.shape[2],
              inner = left.shape[transpose_left ? 1 : 2];
  for (Index n = 0; n < batch; ++n) {
    const float *a = left.floats() + n * rows * inner, *b = right.floats() + n * inner * columns;
    for (Index i = 0; i < rows; ++i)
      for (Index j = 0; j < columns; ++j) {
        double sum = 0;
        for (Index k = 0; k < inner; ++k)
          sum += static_cast<double>(a[transpose_left ? k * rows + i : i * inner + k]) *
                 b[transpose_right ? j * inner + k : k * columns + j];
        store(out.floats()[(n * rows + i) * columns + j], sum, out.accumulate);
      }
  }
}

}  // namespace

void use_matmul(KernelTable& table) { table.matmul = any_float<matmul>; }

}  // namespace lockstep::reference
