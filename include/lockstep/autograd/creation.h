// Tensors with given contents. The device is default_device() unless another one is given; random numbers come from
// this thread's next stream (tensor/random.h), so manual_seed() determines them.
#pragma once

#include <concepts>
#include <cstdint>

#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

Tensor ones(const Shape& shape, Device& device = default_device());
Tensor rand(const Shape& shape, Device& device = default_device());   // uniform in [0, 1)
Tensor randn(const Shape& shape, Device& device = default_device());  // normal, mean 0, standard deviation 1

// On x's device, with its shape and type, a float type; not recorded.
Tensor full_like(const Tensor& x, float value);
Tensor zeros_like(const Tensor& x);
Tensor ones_like(const Tensor& x);

// start, start + step, ... before end: int64 for integers, float32 (computed in double) for other numbers. Throws
// InvalidArgument for a step of 0.
Tensor arange_integers(std::int64_t start, std::int64_t end, std::int64_t step, Device& device);
Tensor arange_numbers(double start, double end, double step, Device& device);
template <typename Start, typename End, typename Step>
Tensor arange(Start start, End end, Step step, Device& device = default_device()) {
  if constexpr (std::integral<Start> && std::integral<End> && std::integral<Step>)
    return arange_integers(start, end, step, device);
  else
    return arange_numbers(start, end, step, device);
}
template <typename Start, typename End> Tensor arange(Start start, End end) { return arange(start, end, 1); }
template <typename End> Tensor arange(End end) { return arange(0, end, 1); }

// `steps` numbers from start to end, both included, float32, computed in double.
Tensor linspace(double start, double end, std::int64_t steps, Device& device = default_device());

// (rows, columns) with 1 in the diagonal; a square without `columns`.
Tensor eye(std::int64_t rows, std::int64_t columns = -1, Device& device = default_device());

// labels (...), int64, of 0 .. classes - 1. Returns (..., classes), float32 (PyTorch: int64), with 1 at each label, as
// soft targets of losses. An index outside: InvalidArgument on the CPU, NaN on a GPU.
Tensor one_hot(const Tensor& labels, std::int64_t classes);

// x (..., rows, columns) with zeros above, or below, a diagonal; 0 is the main one, k the k-th above it.
// Differentiable.
Tensor tril(const Tensor& x, std::int64_t diagonal = 0);
Tensor triu(const Tensor& x, std::int64_t diagonal = 0);

}  // namespace lockstep
#pragma GCC visibility pop
