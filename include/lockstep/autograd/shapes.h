// Functions that change a tensor's shape and keep its elements, of any type. Tensors are contiguous, so all functions
// except reshape(), flatten(), squeeze() and unsqueeze() copy. Differentiable for float32, float16 and bfloat16.
// Negative dimensions count from the end. Each function throws InvalidArgument that names the operator, the argument,
// the expected and the actual value.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

Tensor reshape(const Tensor& x, const Shape& shape);  // shares memory with x
Tensor flatten(const Tensor& x);                      // (N, ...) to (N, rest), in H, W, C order; shares memory with x
Tensor unsqueeze(const Tensor& x, int dim);  // inserts a dimension of extent 1 before `dim`; shares memory with x
Tensor squeeze(const Tensor& x, int dim);    // removes a dimension of extent 1; shares memory with x

// Dimension d of the result is dimension dims[d] of x; dims names each dimension once.
Tensor permute(const Tensor& x, const std::vector<int>& dims);
Tensor transpose(const Tensor& x, int dim0, int dim1);

// The indices start, start + step, ... below stop. Negative values count from the end, and values outside the extent
// are clamped, as in Python; step > 0.
struct Range {
  std::int64_t start = 0, stop = std::numeric_limits<std::int64_t>::max(), step = 1;
};
Tensor slice(const Tensor& x,
             const std::vector<Range>&
                 ranges);  // one per dimension, starting with the first; remaining dimensions are kept entirely
Tensor slice(const Tensor& x, int dim, const Range& range);  // slices one dimension

// Concatenates the tensors along `dim`. All other extents, the types (under an AutoCast, floats are converted to the
// widest) and the devices must be equal. At least one tensor.
Tensor concat(const std::vector<Tensor>& tensors, int dim = 0);
Tensor stack(const std::vector<Tensor>& tensors, int dim = 0);  // along a new dimension
// Splits x into parts of the given sizes, whose sum is the extent; or into parts of `size` elements, the last one
// possibly smaller.
std::vector<Tensor> split(const Tensor& x, const std::vector<std::int64_t>& sizes, int dim = 0);
std::vector<Tensor> split(const Tensor& x, std::int64_t size, int dim = 0);

// At most `chunks` parts of equal size, the last one possibly smaller.
std::vector<Tensor> chunk(const Tensor& x, std::int64_t chunks, int dim = 0);

// The elements in reverse order along each of the dimensions.
Tensor flip(const Tensor& x, const std::vector<int>& dims);
// Element i goes to place i + shift along `dim`, and from the end to the begin.
Tensor roll(const Tensor& x, std::int64_t shift, int dim);

// Float types. repeat: the whole of x, `times` as often along each dimension; more numbers than dimensions are for new
// dimensions in front. tile: fewer numbers than dimensions are for the last ones. repeat_interleave: each slice along
// `dim` is repeated, next to itself.
Tensor repeat(const Tensor& x, const std::vector<std::int64_t>& times);
Tensor tile(const Tensor& x, const std::vector<std::int64_t>& times);
Tensor repeat_interleave(const Tensor& x, std::int64_t times, int dim);

// `widths`: numbers of elements with `value` to insert before and after, one pair per dimension (numpy.pad's order),
// not negative. Float types only.
Tensor pad(const Tensor& x, const std::vector<std::array<std::int64_t, 2>>& widths, float value = 0);

// Repeats x to fill `shape`, by NumPy's rule.
Tensor broadcast_to(const Tensor& x, const Shape& shape);

// As torch.gather: y[.., i, ..] = x[.., index[.., i, ..], ..] along `dim`. index is int64, has x's number of
// dimensions, and is at most as large as x in the other dimensions. Float types only. For an index outside x: on the
// CPU, throws InvalidArgument; on a GPU, where checking would block the host, that result becomes NaN, and so does the
// gradient of the first element along `dim`. Gradients of one element are added in the order of i.
Tensor gather(const Tensor& x, int dim, const Tensor& index);

}  // namespace lockstep
#pragma GCC visibility pop
