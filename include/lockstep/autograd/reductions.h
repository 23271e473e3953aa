// Sums, means and maxima over dimensions of float32, float16 or bfloat16 tensors. Negative dimensions count from the
// end. The summed ones are left out of the result's shape, or kept with extent 1 (`keepdim`). Sums run in float32 or
// wider, in an order that depends on the shape alone. Each throws InvalidArgument that names the operator and a
// dimension that x does not have, or that is named twice.
#pragma once

#include <initializer_list>
#include <vector>

#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

// sum(x), sum(x, -1), sum(x, {0, 2}): none means all.
struct Dims {
  Dims() = default;
  Dims(int dim) : list{dim} {}                           // NOLINT(google-explicit-constructor)
  Dims(std::initializer_list<int> dims) : list(dims) {}  // NOLINT(google-explicit-constructor)
  explicit Dims(std::vector<int> dims) : list(std::move(dims)) {}
  std::vector<int> list;
};

Tensor sum(const Tensor& x, const Dims& dims = {}, bool keepdim = false);   // of nothing: 0
Tensor mean(const Tensor& x, const Dims& dims = {}, bool keepdim = false);  // of nothing: NaN

// Of equal values the first one counts, and NaN is above all numbers. The gradient goes to the one that counts.
// InvalidArgument for the largest of nothing.
struct MaxResult {
  Tensor values, indices;  // indices: int64, along the dimension
};
MaxResult max(const Tensor& x, int dim, bool keepdim = false);
Tensor max(const Tensor& x);                                           // of all elements
Tensor amax(const Tensor& x, const Dims& dims, bool keepdim = false);  // over several dimensions
Tensor argmax(const Tensor& x, int dim, bool keepdim = false);         // int64, not differentiable
Tensor argmax(const Tensor& x);                                        // among all elements, in row-major order

}  // namespace lockstep
#pragma GCC visibility pop
