// Matrix products by cuBLASLt, whose matrices are column-major: our row-major (rows, columns) is its (columns, rows).
#pragma once

#include <tuple>

#include "kernels/cuda/libraries.h"
#include "kernels/cuda/stream.h"

namespace lockstep::cuda {

// Extra operands of an epilogue. Both must be aligned in each call as in the product's first one.
struct ProductExtras {
  const void* vector = nullptr;  // BIAS: added to D's columns, in D's type; BGRADB: written, the sums of op(B) over k
  const void* matrix = nullptr;  // as D; GELU_AUX: written, GELU's argument; DGELU: read
};

// D (m, n) = op(A) * op(B), plus D when accumulating; leading dimensions are those of the stored rows. Sums are in
// float32. `batch` products are stored one after the other.
struct CublasProduct {
  cublasOperation_t a_op, b_op;
  Index m, n, k;
  cublasLtEpilogue_t epilogue;
  bool accumulate;
  DType in = DType::kFloat32, out = DType::kFloat32;
  std::uint32_t a_alignment = 0, b_alignment = 0, d_alignment = 0, vector_alignment = 0,
                matrix_alignment = 0;  // set by the call
  Index batch = 1;

  auto key() const {
    return std::tuple(a_op, b_op, m, n, k, epilogue, accumulate, in, out, a_alignment, b_alignment, d_alignment,
                      vector_alignment, matrix_alignment, batch);
  }
  bool operator<(const CublasProduct& other) const { return key() < other.key(); }
};

// Gradients are windows of a bucket, aligned to only a float, while the faster algorithms need better alignment.
std::uint32_t alignment_of(const void* pointer);

// Computes D by cuBLASLt's best algorithm, which is queried once per shape. Throws Error if there is none.
void multiply(CublasProduct product, const void* a, const void* b, void* d, Stream& stream);

// The same with the product's epilogue. Returns false, and does nothing, if no algorithm exists.
bool multiply_with_epilogue(CublasProduct product, const void* a, const void* b, const ProductExtras& extras, void* d,
                            Stream& stream);

// The result of an empty product: writes zeros (the same bits in every type), or nothing when accumulating.
void clear(Out out, Stream& stream);

}  // namespace lockstep::cuda
