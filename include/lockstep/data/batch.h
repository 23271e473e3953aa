// Samples and batches: lists of tensors.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep::data {

// One sample: any number of CPU tensors of any types and shapes, for example an image and its label.
using Sample = std::vector<Tensor>;

// Returns a CPU tensor of rank 0 that holds one value: a label.
template <typename T> Tensor scalar(T value) {
  return Tensor::from(std::span<const T>(&value, 1), Shape(), cpu_device());
}

// The shape and type that all samples of a data set have at one place in their list.
struct TensorSpec {
  Shape shape;
  DType dtype = DType::kFloat32;

  bool operator==(const TensorSpec&) const = default;
};

// A batch: tensor i holds tensor i of all samples, (N, ...) when they are stacked. A batch of two tensors can be
// destructured,
//
//   for (auto& [inputs, targets] : loader) ...
//
// others with `auto [tokens, lengths, labels] = batch.tensors<3>()` or by index. An index out of range, or inputs(),
// targets() and tensors<N>() on a batch of another size, throw InvalidArgument.
class Batch {
 public:
  Batch() = default;
  Batch(std::initializer_list<Tensor> tensors) : tensors_(tensors) {}
  explicit Batch(std::vector<Tensor> tensors) : tensors_(std::move(tensors)) {}
  Batch(std::pair<Tensor, Tensor> tensors) : tensors_{std::move(tensors.first), std::move(tensors.second)} {}

  std::size_t size() const { return tensors_.size(); }  // number of tensors, not of samples
  Tensor& operator[](std::size_t number) { return tensors_[checked(number)]; }
  const Tensor& operator[](std::size_t number) const { return tensors_[checked(number)]; }
  auto begin() const { return tensors_.begin(); }
  auto end() const { return tensors_.end(); }

  // The first and the second tensor by their usual names.
  Tensor& inputs() { return (*this)[0]; }
  const Tensor& inputs() const { return (*this)[0]; }
  Tensor& targets() { return (*this)[1]; }
  const Tensor& targets() const { return (*this)[1]; }

  // Returns all tensors; the batch must have exactly `N`.
  template <std::size_t N> std::array<Tensor, N> tensors() const {
    check_size(N);
    std::array<Tensor, N> all;
    for (std::size_t i = 0; i < N; ++i) all[i] = tensors_[i];
    return all;
  }

  // Used by `auto& [inputs, targets] = batch`.
  template <std::size_t I> Tensor& get() {
    check_size(2);
    return tensors_[I];
  }
  template <std::size_t I> const Tensor& get() const {
    check_size(2);
    return tensors_[I];
  }

 private:
  std::size_t checked(std::size_t number) const;
  void check_size(std::size_t wanted) const;

  std::vector<Tensor> tensors_;
};

// One sample's place in the stacked tensors of a batch that a loader is filling.
class Row {
 public:
  // Row `number` of `rows`, the first extent of every tensor in `stacked`. These are CPU tensors that must outlive this
  // object.
  Row(std::span<const Tensor> stacked, std::int64_t number, std::int64_t rows)
      : stacked_(stacked), number_(number), rows_(rows) {}

  std::size_t size() const { return stacked_.size(); }  // number of tensors in a sample

  // Returns the sample's elements of tensor `i`. Throws InvalidArgument when the tensor has another type than T, or
  // does not exist.
  template <typename T> std::span<T> span(std::size_t i) const {
    const Tensor& all = tensor(i);
    const std::size_t count = static_cast<std::size_t>(all.count() / rows_);
    return all.span<T>().subspan(static_cast<std::size_t>(number_) * count, count);
  }
  // Returns the only element of a tensor of rank 0: a label.
  template <typename T> T& value(std::size_t i) const {
    const std::span<T> all = span<T>(i);
    check_is_one(i, all.size());
    return all[0];
  }
  std::span<std::byte> bytes(std::size_t i) const;  // the sample's elements of tensor `i`, of any type

 private:
  const Tensor& tensor(std::size_t i) const;
  static void check_is_one(std::size_t i, std::size_t count);

  std::span<const Tensor> stacked_;
  std::int64_t number_, rows_;
};

}  // namespace lockstep::data
#pragma GCC visibility pop

template <> struct std::tuple_size<lockstep::data::Batch> : std::integral_constant<std::size_t, 2> {};
template <std::size_t I> struct std::tuple_element<I, lockstep::data::Batch> { using type = lockstep::Tensor; };
