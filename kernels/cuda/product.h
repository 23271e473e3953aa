// Matrix products by cuBLASLt, whose matrices are column-major: our row-major (rows, columns) is its (columns, rows).
#pragma once

#include <tuple>

#include "kernels/cuda/libraries.h"
#include "kernels/cuda/stream.h"

namespace lockstep::cuda {

// D (m, n) = op(A) * op(B), plus D when accumulating; leading dimensions are those of the stored rows. Sums are in
// float32. `batch` products are stored one after the other.
struct CublasProduct {
  cublasOperation_t a_op, b_op;
  Index m, n, k;
  cublasLtEpilogue_t epilogue;
  bool accumulate;
  DType in = DType::kFloat32, out = DType::kFloat32;
  std::uint32_t a_alignment = 0, b_alignment = 0, d_alignment = 0, bias_alignment = 0;  // set by the call
  Index batch = 1;

  auto key() const {
    return std::tuple(a_op, b_op, m, n, k, epilogue, accumulate, in, out, a_alignment, b_alignment, d_alignment,
                      bias_alignment, batch);
  }
  bool operator<(const CublasProduct& other) const { return key() < other.key(); }
};

// Gradients are windows of a bucket, aligned to only a float, while the faster algorithms need better alignment.
std::uint32_t alignment_of(const void* pointer);

// Computes D by cuBLASLt's best algorithm, which is queried once per shape. Throws Error if there is none.
void multiply(CublasProduct product, const void* a, const void* b, void* d, Stream& stream);

// The same with the bias in the epilogue; sets the alignments. Returns false, and does nothing, if no algorithm exists.
bool multiply_with_epilogue(const CublasProduct& product, const void* a, const void* b, const void* bias, void* d,
                            Stream& stream);

// The result of an empty product: writes zeros (the same bits in every type), or nothing when accumulating.
void clear(Out out, Stream& stream);

}  // namespace lockstep::cuda
