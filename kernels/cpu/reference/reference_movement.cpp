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

// Calls visit(offset in the index, offset of the line along `dim` in x), line after line in the order of the index, so
// that neighbouring lines are visited together.
template <typename Visit> void for_each_place(std::size_t dim, const Shape& index, const Shape& x, const Visit& visit) {
  Strides of_lines = strides_of(x);
  of_lines[dim] = 0;
  const StridedLoop<2> loop(index, {strides_of(index), of_lines});
  const Index count = loop.extent(0), index_step = loop.stride(0, 0), line_step = loop.stride(1, 0);
  for_each_outer(loop, 1, [&](const auto& at) {
    const Index first = at[0], line = at[1];
    if (index_step == 1 && line_step == 0)  // along the last dimension: constants for the compiler
      for (Index i = 0; i < count; ++i) visit(first + i, line);
    else
      for (Index i = 0; i < count; ++i) visit(first + i * index_step, line + i * line_step);
  });
}

void gather(std::size_t dim, In x, In index, Out y, Stream&) {
  if (y.count() == 0) return;
  const Index bound = x.shape[dim], x_step = strides_of(x.shape)[dim];
  const Index* const places = index.as<Index>();
  const float* const from = x.floats();
  float* const to = y.floats();
  for_each_place(dim, index.shape, x.shape, [=](Index at, Index line) {
    const Index place = places[at];
    const bool outside = static_cast<std::uint64_t>(place) >= static_cast<std::uint64_t>(bound);
    to[at] = outside ? std::numeric_limits<float>::quiet_NaN() : from[line + place * x_step];
  });
}

void gather_backward(std::size_t dim, In index, In y_grad, Out x_grad, Stream&) {
  if (!x_grad.accumulate) std::fill_n(x_grad.floats(), x_grad.count(), 0.0F);
  if (y_grad.count() == 0 || x_grad.count() == 0) return;
  const Index bound = x_grad.shape[dim], x_step = strides_of(x_grad.shape)[dim];
  const Index* const places = index.as<Index>();
  const float* const from = y_grad.floats();
  float* const to = x_grad.floats();
  for_each_place(dim, index.shape, x_grad.shape, [=](Index at, Index line) {
    const Index place = places[at];
    const bool outside = static_cast<std::uint64_t>(place) >= static_cast<std::uint64_t>(bound);
    // Outside, the line's first gradient becomes NaN.
    to[line + (outside ? 0 : place) * x_step] += outside ? std::numeric_limits<float>::quiet_NaN() : from[at];
  });
}

void scatter(std::size_t dim, In index, In source, Out y, Stream&) {
  if (index.count() == 0 || y.count() == 0) return;
  const Index bound = y.shape[dim], y_step = strides_of(y.shape)[dim], source_step = source.shape.dims() == 0 ? 0 : 1;
  for_each_place(dim, index.shape, y.shape, [&](Index at, Index line) {
    const Index place = index.as<Index>()[at];
    if (place < 0 || place >= bound)
      y.floats()[line] = std::numeric_limits<float>::quiet_NaN();
    else
      y.floats()[line + place * y_step] = source.floats()[at * source_step];
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
