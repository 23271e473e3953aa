// Batches of matrix products by cuBLASLt: c^T (N, M) = op(b)^T (N, K) * op(a)^T (K, M), an entire batch in one call.
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/product.h"

namespace lockstep::cuda {

void matmul(In a, bool transpose_a, In b, bool transpose_b, Out c, Stream& stream) {
  const Index batch = c.shape[0], rows = c.shape[1], columns = c.shape[2], inner = a.shape[transpose_a ? 1 : 2];
  for (const InputView& other : {b, InputView(c)}) require_type(a.dtype, other);
  if (c.count() == 0 || inner == 0) return clear(c, stream);
  CublasProduct product{transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                        transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N,
                        columns,
                        rows,
                        inner,
                        CUBLASLT_EPILOGUE_DEFAULT,
                        c.accumulate,
                        a.dtype,
                        c.dtype};
  product.batch = batch;
  multiply(product, b.data, a.data, c.data, stream);
}

void use_matmul(KernelTable& table) { table.matmul = matmul; }

}  // namespace lockstep::cuda
