// Matrix products by cuBLASLt, whose matrices are column-major: our row-major (rows, columns) is its (columns, rows).
#pragma once

#include <tuple>

#include "kernels/cuda/libraries.h"
#include "kernels/cuda/stream.h"

namespace lockstep::cuda {

// D (m, n) = op(A) * op(B), plus D when accumulating; leading dimensions are the stored rows. Sums run in float32.
// `batch` of them lie one behind another.
struct Product {
  cublasOperation_t a_op, b_op;
  Index m, n, k;
  cublasLtEpilogue_t epilogue;
  bool accumulate;
  DType in = DType::kFloat32, out = DType::kFloat32;
  std::uint32_t a_alignment = 0, b_alignment = 0, d_alignment = 0, bias_alignment = 0;  // filled in at the call
  Index batch = 1;

  auto key() const {
    return std::tuple(a_op, b_op, m, n, k, epilogue, accumulate, in, out, a_alignment, b_alignment, d_alignment,
                      bias_alignment, batch);
  }
  bool operator<(const Product& other) const { return key() < other.key(); }
};

// Gradients are windows of a bucket, aligned to no more than a float: the faster ways are for what is aligned better.
std::uint32_t alignment_of(const void* pointer);

// D by the way that cuBLASLt does best, asked once a shape. Throws Error when there is none.
void multiply(Product product, const void* a, const void* b, void* d, Stream& stream);

// With the bias in the epilogue; the alignments are filled in. False, and nothing done: there is no such way.
bool multiply_with_epilogue(const Product& product, const void* a, const void* b, const void* bias, void* d,
                            Stream& stream);

// The product of nothing: zeros, the same bits in every type, unless it is added.
void clear(Out out, Stream& stream);

}  // namespace lockstep::cuda
