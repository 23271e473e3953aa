// The part of a Tensor that differentiation adds: state, and members that read as PyTorch's. autograd/ implements both,
// so that tensor/ does not depend on it; programs that call a member include an autograd header or lockstep.h.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "lockstep/core/shape.h"

#pragma GCC visibility push(default)
namespace lockstep {

class Tensor;
struct BackwardOptions;
struct Dims;
struct MaxResult;

// Autograd's state of a tensor; see autograd/variable.h.
class AutogradMeta {
 public:
  virtual ~AutogradMeta() = default;
  virtual void backward(const Tensor& root, const BackwardOptions& options) = 0;
};

// The base of Tensor. x.sum(dims) is sum(x, dims) of autograd/reductions.h, x.permute(dims) is permute(x, dims) of
// autograd/shapes.h, and so on: recorded, with the same errors. As all functions of shapes.h, those that PyTorch
// returns as views of another order or of a part copy here: operator[], t, transpose and permute.
class DifferentiableMembers {
 public:
  // x[i]: index i of the first dimension, which the result lacks. A negative index counts from the end. Throws
  // InvalidArgument for a scalar or an index outside. The result is a copy, so that x[i] = y does not compile.
  Tensor operator[](std::int64_t index) const;

  Tensor sum() const;
  Tensor sum(const Dims& dims, bool keepdim = false) const;
  Tensor mean() const;
  Tensor mean(const Dims& dims, bool keepdim = false) const;
  Tensor max() const;
  MaxResult max(int dim, bool keepdim = false) const;
  Tensor min() const;
  MaxResult min(int dim, bool keepdim = false) const;
  Tensor argmax() const;
  Tensor argmax(int dim, bool keepdim = false) const;

  // One extent may be -1, which then follows from the number of elements. view() and reshape() are the same.
  Tensor view(std::initializer_list<std::int64_t> extents) const;
  Tensor view(const Shape& shape) const;
  Tensor reshape(std::initializer_list<std::int64_t> extents) const;
  Tensor reshape(const Shape& shape) const;
  Tensor unsqueeze(int dim) const;
  Tensor squeeze(int dim) const;
  Tensor t() const;  // a matrix, transposed
  Tensor transpose(int dim0, int dim1) const;
  Tensor permute(const std::vector<int>& dims) const;

  Tensor detach() const;
  Tensor grad() const;

  std::int64_t size(int dim) const;  // negative dimensions count from the end
  int dim() const;
  std::int64_t numel() const;

 protected:
  DifferentiableMembers() = default;
  DifferentiableMembers(const DifferentiableMembers&) = default;
  DifferentiableMembers& operator=(const DifferentiableMembers&) = default;
  ~DifferentiableMembers() = default;

 private:
  const Tensor& self() const;
};

}  // namespace lockstep
#pragma GCC visibility pop
