// How kernels see memory: a pointer with element type and shape, row-major and contiguous unless the operator's comment
// says otherwise.
//
// A view owns nothing: the memory must live until the stream has run the kernel. A Tensor converts to either view.
#pragma once

#include <cstdint>

#include "lockstep/core/dtype.h"
#include "lockstep/core/shape.h"

#pragma GCC visibility push(default)
namespace lockstep {

namespace internal {
// Throws as a failed LOCKSTEP_CHECK, which this header cannot use because nvcc cannot compile its formatting.
[[noreturn]] void wrong_element_type(DType expected, DType got, const Shape& shape);
}  // namespace internal

// Memory that a kernel reads. Null `data`: an optional operand that was left out.
struct InputView {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;
  Shape shape = {0};

  InputView() = default;
  InputView(const void* memory, DType type, const Shape& its_shape) : data(memory), dtype(type), shape(its_shape) {}
  template <typename T> InputView(const T* memory, const Shape& its_shape)
      : data(memory), dtype(kDTypeOf<T>), shape(its_shape) {}

  explicit operator bool() const { return data != nullptr; }
  std::int64_t count() const { return shape.count(); }
  // Null if there is no memory. T must be the element type (LOCKSTEP_CHECK).
  template <typename T> const T* as() const {
    if (dtype != kDTypeOf<T> && data != nullptr) internal::wrong_element_type(kDTypeOf<T>, dtype, shape);
    return static_cast<const T*>(data);
  }
  const float* floats() const { return as<float>(); }
};

// Memory that a kernel writes: it sets every element, or with `accumulate` adds to every element. Null `data`: not
// wanted.
struct OutputView {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  Shape shape = {0};
  bool accumulate = false;

  OutputView() = default;
  OutputView(void* memory, DType type, const Shape& its_shape, bool adds = false)
      : data(memory), dtype(type), shape(its_shape), accumulate(adds) {}
  template <typename T> OutputView(T* memory, const Shape& its_shape, bool adds = false)
      : data(memory), dtype(kDTypeOf<T>), shape(its_shape), accumulate(adds) {}

  explicit operator bool() const { return data != nullptr; }
  operator InputView() const { return {data, dtype, shape}; }  // for operators that work in place
  std::int64_t count() const { return shape.count(); }
  template <typename T> T* as() const {
    if (dtype != kDTypeOf<T> && data != nullptr) internal::wrong_element_type(kDTypeOf<T>, dtype, shape);
    return static_cast<T*>(data);
  }
  float* floats() const { return as<float>(); }
};

// Short names for the parameters of kernels.
using In = const InputView&;
using Out = const OutputView&;

}  // namespace lockstep
#pragma GCC visibility pop
