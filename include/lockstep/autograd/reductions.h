// Sums, means, extremes and others over dimensions of float32, float16 or bfloat16 tensors. Negative dimensions count
// from the end. Reduced dimensions are removed from the result's shape, or with `keepdim` kept with extent 1. Sums are
// computed in float32 or wider, in an order that depends only on the shape. Each function throws InvalidArgument that
// names the operator if x does not have a dimension or if one is given twice.
#pragma once

#include <cstdint>
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

// Among equal values the first is chosen, and the first NaN before any number, also as the minimum. The gradient goes
// to the chosen element. Throws InvalidArgument for a maximum or minimum of no elements.
struct MaxResult {
  Tensor values, indices;  // indices: int64, positions along the dimension
};
MaxResult max(const Tensor& x, int dim, bool keepdim = false);
Tensor max(const Tensor& x);                                           // of all elements
Tensor amax(const Tensor& x, const Dims& dims, bool keepdim = false);  // over several dimensions
Tensor argmax(const Tensor& x, int dim, bool keepdim = false);         // int64, not differentiable
Tensor argmax(const Tensor& x);                                        // among all elements, in row-major order
MaxResult min(const Tensor& x, int dim, bool keepdim = false);
Tensor min(const Tensor& x);
Tensor amin(const Tensor& x, const Dims& dims, bool keepdim = false);
Tensor argmin(const Tensor& x, int dim, bool keepdim = false);
Tensor argmin(const Tensor& x);

// The product; of no elements 1. Multiplied in double.
Tensor prod(const Tensor& x, const Dims& dims = {}, bool keepdim = false);

// The sum of (x - mean)^2, divided by n - correction for n elements (Bessel's correction is 1, and 0 is that of norms);
// NaN if that is not positive. stddev is its root (PyTorch's std(): here std is the library's namespace), with gradient
// 0 where it is 0.
Tensor var(const Tensor& x, const Dims& dims = {}, bool keepdim = false, float correction = 1);
Tensor stddev(const Tensor& x, const Dims& dims = {}, bool keepdim = false, float correction = 1);

// p = 1: the sum of magnitudes; 2: the root of the sum of squares; infinity: the largest magnitude. The gradient of
// norm 2 is 0 where it is 0; that of the largest magnitude is divided among equal ones. Throws InvalidArgument for
// another p.
Tensor norm(const Tensor& x, float p = 2, const Dims& dims = {}, bool keepdim = false);

// log(sum of e^x), shifted by the maximum so that exp() does not overflow. The gradient of a sum whose x are all
// -infinity is 0, as in PyTorch.
Tensor logsumexp(const Tensor& x, const Dims& dims, bool keepdim = false);

// y_i = x_0 + ... + x_i along `dim`, added in double.
Tensor cumsum(const Tensor& x, int dim);

// Sorted along `dim`, with the positions along it, int64. NaN is larger than any number: last in ascending order, first
// in descending order. Equal elements, and NaN, stay in their order. topk: the first k of the sorted line, the largest
// or the smallest. The gradient of a value goes to its element. Throws InvalidArgument if k is not in 0 .. the extent.
struct SortResult {
  Tensor values, indices;
};
SortResult sort(const Tensor& x, int dim = -1, bool descending = false);
SortResult topk(const Tensor& x, std::int64_t k, int dim = -1, bool largest = true);
Tensor argsort(const Tensor& x, int dim = -1, bool descending = false);  // the indices; not differentiable

}  // namespace lockstep
#pragma GCC visibility pop
