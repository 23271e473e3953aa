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

// A tensor of one value and no extents, on the CPU: a label.
template <typename T>
Tensor scalar(T value) {
  return Tensor::from(std::span<const T>(&value, 1), Shape());
}

// What the samples of a data set have at one place in their list.
struct TensorSpec {
  Shape shape;
  DType dtype = DType::kFloat32;

  bool operator==(const TensorSpec&) const = default;
};

// A batch: tensor i holds tensor i of all samples, (N, ...) when they are stacked. Batches of two tensors can be taken
// apart,
//
//   for (auto& [inputs, targets] : loader) ...
//
// others by `auto [tokens, lengths, labels] = batch.tensors<3>()`, or by their numbers. A number that the batch does
// not have, and the names of a batch of another size, throw InvalidArgument.
class Batch {
 public:
  Batch() = default;
  Batch(std::initializer_list<Tensor> tensors) : tensors_(tensors) {}
  explicit Batch(std::vector<Tensor> tensors) : tensors_(std::move(tensors)) {}

  std::size_t size() const { return tensors_.size(); }  // tensors, not samples
  Tensor& operator[](std::size_t number) { return tensors_[checked(number)]; }
  const Tensor& operator[](std::size_t number) const { return tensors_[checked(number)]; }
  auto begin() const { return tensors_.begin(); }
  auto end() const { return tensors_.end(); }

  // By their usual names: the first and the second tensor.
  Tensor& inputs() { return (*this)[0]; }
  const Tensor& inputs() const { return (*this)[0]; }
  Tensor& targets() { return (*this)[1]; }
  const Tensor& targets() const { return (*this)[1]; }

  // All `N` tensors of a batch that has just as many.
  template <std::size_t N>
  std::array<Tensor, N> tensors() const {
    check_size(N);
    std::array<Tensor, N> all;
    for (std::size_t i = 0; i < N; ++i) all[i] = tensors_[i];
    return all;
  }

  // Behind `auto& [inputs, targets] = batch`.
  template <std::size_t I>
  Tensor& get() {
    check_size(2);
    return tensors_[I];
  }
  template <std::size_t I>
  const Tensor& get() const {
    check_size(2);
    return tensors_[I];
  }

 private:
  std::size_t checked(std::size_t number) const;
  void check_size(std::size_t wanted) const;

  std::vector<Tensor> tensors_;
};

// The place of one sample in stacked tensors that are being filled: a loader's batch.
class Row {
 public:
  // Row `number` of `rows`, the first extent of all `stacked`, CPU tensors that outlive this object.
  Row(std::span<const Tensor> stacked, std::int64_t number, std::int64_t rows)
      : stacked_(stacked), number_(number), rows_(rows) {}

  std::size_t size() const { return stacked_.size(); }  // tensors of a sample

  // The sample's elements of tensor `i`. Throws InvalidArgument when T is not its type, or there is no such tensor.
  template <typename T>
  std::span<T> span(std::size_t i) const {
    const Tensor& all = tensor(i);
    const std::size_t count = static_cast<std::size_t>(all.count() / rows_);
    return all.span<T>().subspan(static_cast<std::size_t>(number_) * count, count);
  }
  // The only element of a tensor without extents: a label.
  template <typename T>
  T& value(std::size_t i) const {
    const std::span<T> all = span<T>(i);
    check_is_one(i, all.size());
    return all[0];
  }
  std::span<std::byte> bytes(std::size_t i) const;  // of any type

 private:
  const Tensor& tensor(std::size_t i) const;
  static void check_is_one(std::size_t i, std::size_t count);

  std::span<const Tensor> stacked_;
  std::int64_t number_, rows_;
};

}  // namespace lockstep::data
#pragma GCC visibility pop

template <>
struct std::tuple_size<lockstep::data::Batch> : std::integral_constant<std::size_t, 2> {};
template <std::size_t I>
struct std::tuple_element<I, lockstep::data::Batch> {
  using type = lockstep::Tensor;
};
