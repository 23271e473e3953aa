// Tensors of other shapes with the same elements. Tensors are contiguous: all but reshape(), squeeze() and unsqueeze()
// copy. Elements of any type; differentiable for float32, float16 and bfloat16. Dimensions that are negative count from
// the end. Each throws InvalidArgument that names the operator, the argument, what came and what was expected.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

Tensor reshape(const Tensor& x, const Shape& shape);  // the same memory
Tensor flatten(const Tensor& x);                      // (N, ...) to (N, rest), in H, W, C order; the same memory
Tensor unsqueeze(const Tensor& x, int dim);           // a dimension of extent 1 before `dim`; the same memory
Tensor squeeze(const Tensor& x, int dim);             // without that dimension, whose extent is 1; the same memory

// Dimension d of the result is dimension dims[d] of x: each is named once.
Tensor permute(const Tensor& x, const std::vector<int>& dims);
Tensor transpose(const Tensor& x, int dim0, int dim1);

// Indices start, start + step, ... below stop. Negative ones count from the end, and what is outside is clamped, as in
// Python; step > 0.
struct Range {
  std::int64_t start = 0, stop = std::numeric_limits<std::int64_t>::max(), step = 1;
};
Tensor slice(const Tensor& x,
             const std::vector<Range>& ranges);  // one a dimension, from the first on; missing ones take all
Tensor slice(const Tensor& x, int dim, const Range& range);  // of one dimension

// One after the other along `dim`: equal in all other extents, of one type (under an AutoCast floats are widened) and
// device; at least one.
Tensor concat(const std::vector<Tensor>& tensors, int dim = 0);
Tensor stack(const std::vector<Tensor>& tensors, int dim = 0);  // along a new dimension
// Parts of these sizes, which add up to the extent; or of `size` each, the last one of what is left.
std::vector<Tensor> split(const Tensor& x, const std::vector<std::int64_t>& sizes, int dim = 0);
std::vector<Tensor> split(const Tensor& x, std::int64_t size, int dim = 0);

// `widths`: elements of `value` before and after, one pair a dimension (numpy.pad's order), none negative. Float types.
Tensor pad(const Tensor& x, const std::vector<std::array<std::int64_t, 2>>& widths, float value = 0);

// Repeated to fill `shape`, by NumPy's rule.
Tensor broadcast_to(const Tensor& x, const Shape& shape);

// torch.gather: y[.., i, ..] = x[.., index[.., i, ..], ..] along `dim`. index: int64, of x's number of dimensions, in
// the others at most as large as x. Float types. An index outside is InvalidArgument on the CPU; on a GPU, whose values
// the host does not wait for, that result is NaN, and so is the first gradient of its line of x. Gradients of one
// element are added in the order of i.
Tensor gather(const Tensor& x, int dim, const Tensor& index);

}  // namespace lockstep
#pragma GCC visibility pop
