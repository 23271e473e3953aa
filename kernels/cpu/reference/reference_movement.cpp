// Copies of elements.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/reference/reference.h"
#include "kernels/strided_loop.h"

namespace lockstep::reference {

namespace {

void add_strided(const StridedCopy& copy, In in, Out out, Stream&) {
  const StridedLoop<2> loop(copy.extents, {copy.in_strides, copy.out_strides});
  const float* const from = in.floats() + copy.in_offset;
  float* const to = out.floats() + copy.out_offset;
  for_each_outer(loop, 0, [&](const auto& at) { to[at[1]] += from[at[0]]; });
}

void copy_strided(const StridedCopy& copy, In in, Out out, Stream& stream) {
  if (out.accumulate) return any_float<add_strided>(copy, in, out, stream);
  const StridedLoop<2> loop(copy.extents, {copy.in_strides, copy.out_strides});
  const auto bytes = static_cast<Index>(size_of(out.dtype));
  const auto* const from = static_cast<const std::byte*>(in.data) + copy.in_offset * bytes;
  auto* const to = static_cast<std::byte*>(out.data) + copy.out_offset * bytes;
  for_each_outer(loop, 0, [&](const auto& at) {
    std::memcpy(to + at[1] * bytes, from + at[0] * bytes, static_cast<std::size_t>(bytes));
  });
}

// `shape` with another extent in one dimension.
Shape with_extent(const Shape& shape, std::size_t dim, Index extent) {
  std::array<Index, Shape::kMaxDims> extents{};
  std::copy_n(shape.extents().begin(), shape.dims(), extents.begin());
  extents[dim] = extent;
  return Shape(std::span<const Index>(extents).first(shape.dims()));
}

// Lines along `dim` of the index and of x (or its gradient).
StridedLoop<2> lines_of(std::size_t dim, const Shape& index, const Shape& x) {
  return {with_extent(index, dim, 1), {strides_of(index), strides_of(x)}};
}

void gather(std::size_t dim, In x, In index, Out y, Stream&) {
  if (y.count() == 0) return;
  const Index n = index.shape[dim], bound = x.shape[dim], index_step = strides_of(index.shape)[dim],
              x_step = strides_of(x.shape)[dim];
  for_each_outer(lines_of(dim, index.shape, x.shape), 0, [&](const auto& at) {
    const Index* const places = index.as<Index>() + at[0];
    float* const to = y.floats() + at[0];
    for (Index i = 0; i < n; ++i) {
      const Index place = places[i * index_step];
      to[i * index_step] =
          place < 0 || place >= bound ? std::numeric_limits<float>::quiet_NaN() : x.floats()[at[1] + place * x_step];
    }
  });
}

void gather_backward(std::size_t dim, In index, In y_grad, Out x_grad, Stream&) {
  if (!x_grad.accumulate) std::fill_n(x_grad.floats(), x_grad.count(), 0.0F);
  if (y_grad.count() == 0 || x_grad.count() == 0) return;
  const Index n = index.shape[dim], bound = x_grad.shape[dim], index_step = strides_of(index.shape)[dim];
  const Index x_step = strides_of(x_grad.shape)[dim];
  for_each_outer(lines_of(dim, index.shape, x_grad.shape), 0, [&](const auto& at) {
    const Index* const places = index.as<Index>() + at[0];
    const float* const from = y_grad.floats() + at[0];
    for (Index i = 0; i < n; ++i) {
      const Index place = places[i * index_step];
      const bool outside = place < 0 || place >= bound;  // the line's first gradient becomes NaN
      x_grad.floats()[at[1] + (outside ? 0 : place) * x_step] +=
          outside ? std::numeric_limits<float>::quiet_NaN() : from[i * index_step];
    }
  });
}

void scatter(std::size_t dim, In index, In source, Out y, Stream&) {
  if (index.count() == 0 || y.count() == 0) return;
  const Index n = index.shape[dim], bound = y.shape[dim], index_step = strides_of(index.shape)[dim];
  const Index y_step = strides_of(y.shape)[dim], source_step = source.shape.dims() == 0 ? 0 : 1;
  for_each_outer(lines_of(dim, index.shape, y.shape), 0, [&](const auto& at) {
    for (Index i = 0; i < n; ++i) {
      const Index from = at[0] + i * index_step, place = index.as<Index>()[from];
      if (place < 0 || place >= bound)
        y.floats()[at[1]] = std::numeric_limits<float>::quiet_NaN();
      else
        y.floats()[at[1] + place * y_step] = source.floats()[from * source_step];
    }
  });
}

}  // namespace

void use_movement(KernelTable& table) {
  table.copy_strided = copy_strided;
  table.gather = any_float<gather>;
  table.gather_backward = any_float<gather_backward>;
  table.scatter = any_float<scatter>;
}

}  // namespace lockstep::reference
