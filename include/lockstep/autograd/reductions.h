// Sums, means and maxima over dimensions of float32, float16 or bfloat16 tensors. Negative dimensions count from the
// end. Reduced dimensions are removed from the result's shape, or with `keepdim` kept with extent 1. Sums are computed
// in float32 or wider, in an order that depends only on the shape. Each function throws InvalidArgument that names the
// operator if x does not have a dimension or if one is given twice.
#pragma once

#include <initializer_list>
#include <vector>

#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

// The dimensions to reduce: sum(x), sum(x, -1), sum(x, {0, 2}). An empty list means all.
struct Dims {
  Dims() = default;
  Dims(int dim) : list{dim} {}                           // NOLINT(google-explicit-constructor)
  Dims(std::initializer_list<int> dims) : list(dims) {}  // NOLINT(google-explicit-constructor)
  explicit Dims(std::vector<int> dims) : list(std::move(dims)) {}
  std::vector<int> list;
};

Tensor sum(const Tensor& x, const Dims& dims = {}, bool keepdim = false);   // the sum of no elements is 0
Tensor mean(const Tensor& x, const Dims& dims = {}, bool keepdim = false);  // the mean of no elements is NaN

// Among equal values the first is chosen, and NaN is larger than any number. The gradient goes to the chosen element.
// Throws InvalidArgument for a maximum over no elements.
struct MaxResult {
  Tensor values, indices;  // indices: int64, positions along the dimension
};
MaxResult max(const Tensor& x, int dim, bool keepdim = false);
Tensor max(const Tensor& x);                                           // of all elements
Tensor amax(const Tensor& x, const Dims& dims, bool keepdim = false);  // over several dimensions
Tensor argmax(const Tensor& x, int dim, bool keepdim = false);         // int64, not differentiable
Tensor argmax(const Tensor& x);                                        // among all elements, in row-major order

}  // namespace lockstep
#pragma GCC visibility pop
