// The dimensions that a reduction combines.
#pragma once

#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "lockstep/autograd/reductions.h"
#include "lockstep/autograd/shapes.h"
#include "lockstep/core/error.h"
#include "src/autograd/math/dimensions.h"

namespace lockstep {

// x as (outer, n, inner), reduced over the middle dimension.
struct Middle {
  std::int64_t outer = 1, n = 1, inner = 1;

  Middle() = default;
  Middle(const Shape& x, std::size_t dim) {
    for (std::size_t d = 0; d < x.dims(); ++d) (d < dim ? outer : d == dim ? n : inner) *= x[d];
  }
  Shape whole() const { return {outer, n, inner}; }
  Shape reduced() const { return {outer, 1, inner}; }
};

// The dimensions of x that are reduced.
class Reduced {
 public:
  Reduced(std::string_view operation, const Shape& x, const Dims& dims) : x_(x) {
    if (dims.list.empty()) reduced_.fill(true);
    for (const int given : dims.list) {
      bool& is_reduced = reduced_[dimension_of(operation, given, x)];
      if (is_reduced) throw InvalidArgument("{}: dimension {} of shape {} is given twice", operation, given, x.text());
      is_reduced = true;
    }
  }

  // x's shape without the reduced dimensions, or with extents of 1 in their place if `keepdim`.
  Shape shape(bool keepdim) const {
    std::vector<std::int64_t> extents;
    for (std::size_t dim = 0; dim < x_.dims(); ++dim)
      if (keepdim || !reduced_[dim]) extents.push_back(reduced_[dim] ? 1 : x_[dim]);
    return Shape(std::span<const std::int64_t>(extents));
  }
  // The number of elements that are combined into one.
  std::int64_t count() const {
    std::int64_t product = 1;
    for (std::size_t dim = 0; dim < x_.dims(); ++dim) product *= reduced_[dim] ? x_[dim] : 1;
    return product;
  }
  // The reduced dimensions as one, if they are neighbours.
  std::optional<Middle> as_middle() const {
    Middle middle;
    bool has_reduced = false;
    for (std::size_t dim = 0; dim < x_.dims(); ++dim) {
      if (reduced_[dim] && has_reduced && !reduced_[dim - 1]) return std::nullopt;
      has_reduced = has_reduced || reduced_[dim];
      (reduced_[dim] ? middle.n : has_reduced ? middle.inner : middle.outer) *= x_[dim];
    }
    return middle;
  }
  std::vector<std::int64_t> dims() const {
    std::vector<std::int64_t> list;
    for (std::size_t dim = 0; dim < x_.dims(); ++dim)
      if (reduced_[dim]) list.push_back(static_cast<std::int64_t>(dim));
    return list;
  }
  // The dimensions that are kept, followed by those that are reduced.
  std::vector<int> kept_first() const {
    std::vector<int> order;
    for (const bool wanted : {false, true})
      for (std::size_t dim = 0; dim < x_.dims(); ++dim)
        if (reduced_[dim] == wanted) order.push_back(static_cast<int>(dim));
    return order;
  }

 private:
  Shape x_;
  std::array<bool, Shape::kMaxDims> reduced_{};
};

// Calls reduce(x, middle) with the reduced dimensions as one: of x, or if they are not neighbours of a copy in which
// they are the last. Its result has x's elements without the reduced dimensions; returns it in the wanted shape.
template <typename Reduce>
Tensor reduce_as_one(const Tensor& x, const Reduced& reduced, bool keepdim, const Reduce& reduce) {
  if (const std::optional<Middle> middle = reduced.as_middle())
    return reshape(reduce(x, *middle), reduced.shape(keepdim));
  Middle last;
  last.outer = reduced.shape(false).count(), last.n = reduced.count();
  return reshape(reduce(permute(x, reduced.kept_first()), last), reduced.shape(keepdim));
}

}  // namespace lockstep
