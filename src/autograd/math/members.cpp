// The members of Tensor that differentiate, in terms of the functions.
#include <algorithm>
#include <string>

#include "lockstep/autograd/extend.h"
#include "lockstep/autograd/reductions.h"
#include "lockstep/autograd/shapes.h"

namespace lockstep {

namespace {

// One extent may be -1.
Shape shape_for(const Tensor& x, std::initializer_list<std::int64_t> extents) {
  std::vector<std::int64_t> known(extents);
  const auto open = std::find(known.begin(), known.end(), -1);
  if (open == known.end()) return Shape(std::span<const std::int64_t>(known));
  *open = 1;
  const std::int64_t others = Shape(std::span<const std::int64_t>(known)).count();
  if (others == 0 || x.count() % others != 0) {
    std::string text;
    for (const std::int64_t extent : extents) text += (text.empty() ? "" : ", ") + std::to_string(extent);
    throw InvalidArgument("view: x {} has {} elements, for which no extent in the place of -1 makes ({})",
                          x.shape().text(), x.count(), text);
  }
  *open = x.count() / others;
  return Shape(std::span<const std::int64_t>(known));
}

}  // namespace

const Tensor& DifferentiableMembers::self() const { return static_cast<const Tensor&>(*this); }

Tensor DifferentiableMembers::operator[](std::int64_t index) const {
  check_place("operator[]", "x", self());
  if (dim() == 0) throw InvalidArgument("operator[]: x is a scalar, expected at least one dimension");
  const std::int64_t extent = size(0), at = index < 0 ? index + extent : index;
  if (at < 0 || at >= extent)
    throw InvalidArgument("operator[]: index {} is outside x {}, expected {} to {}", index, self().shape().text(),
                          -extent, extent - 1);
  return lockstep::squeeze(slice(self(), 0, {at, at + 1}), 0);
}

Tensor DifferentiableMembers::sum() const { return lockstep::sum(self()); }
Tensor DifferentiableMembers::sum(const Dims& dims, bool keepdim) const { return lockstep::sum(self(), dims, keepdim); }
Tensor DifferentiableMembers::mean() const { return lockstep::mean(self()); }
Tensor DifferentiableMembers::mean(const Dims& dims, bool keepdim) const {
  return lockstep::mean(self(), dims, keepdim);
}
Tensor DifferentiableMembers::max() const { return lockstep::max(self()); }
MaxResult DifferentiableMembers::max(int dim, bool keepdim) const { return lockstep::max(self(), dim, keepdim); }
Tensor DifferentiableMembers::min() const { return lockstep::min(self()); }
MaxResult DifferentiableMembers::min(int dim, bool keepdim) const { return lockstep::min(self(), dim, keepdim); }
Tensor DifferentiableMembers::argmax() const { return lockstep::argmax(self()); }
Tensor DifferentiableMembers::argmax(int dim, bool keepdim) const { return lockstep::argmax(self(), dim, keepdim); }

Tensor DifferentiableMembers::view(std::initializer_list<std::int64_t> extents) const {
  return lockstep::reshape(self(), shape_for(self(), extents));
}
Tensor DifferentiableMembers::view(const Shape& shape) const { return lockstep::reshape(self(), shape); }
Tensor DifferentiableMembers::reshape(std::initializer_list<std::int64_t> extents) const { return view(extents); }
Tensor DifferentiableMembers::reshape(const Shape& shape) const { return view(shape); }
Tensor DifferentiableMembers::unsqueeze(int dim) const { return lockstep::unsqueeze(self(), dim); }
Tensor DifferentiableMembers::squeeze(int dim) const { return lockstep::squeeze(self(), dim); }
Tensor DifferentiableMembers::t() const {
  check_place("t", "x (rows, columns)", self(), 2);
  return lockstep::transpose(self(), 0, 1);
}
Tensor DifferentiableMembers::transpose(int dim0, int dim1) const { return lockstep::transpose(self(), dim0, dim1); }
Tensor DifferentiableMembers::permute(const std::vector<int>& dims) const { return lockstep::permute(self(), dims); }

Tensor DifferentiableMembers::detach() const { return lockstep::detach(self()); }
Tensor DifferentiableMembers::grad() const { return lockstep::grad(self()); }

std::int64_t DifferentiableMembers::size(int dim) const { return self().shape()[dim]; }
int DifferentiableMembers::dim() const { return static_cast<int>(self().shape().dims()); }
std::int64_t DifferentiableMembers::numel() const { return self().count(); }

}  // namespace lockstep
