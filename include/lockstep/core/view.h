// How kernels see memory: a pointer with its element type and shape. Row-major and contiguous unless the operator says
// otherwise.
//
// A view owns nothing: the memory must live until the stream has run the kernel. A Tensor converts to either view.
#pragma once

#include <cstdint>

#include "lockstep/core/dtype.h"
#include "lockstep/core/shape.h"

#pragma GCC visibility push(default)
namespace lockstep {

namespace internal {
// A LOCKSTEP_CHECK that failed; here there is none, as nvcc cannot compile what formats its message.
[[noreturn]] void wrong_element_type(DType expected, DType got, const Shape& shape);
}  // namespace internal

// What a kernel reads. Without memory (`data` null) it is an operand that was left out.
struct InputView {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;
  Shape shape = {0};

  InputView() = default;
  InputView(const void* memory, DType type, const Shape& its_shape) : data(memory), dtype(type), shape(its_shape) {}
  template <typename T>
  InputView(const T* memory, const Shape& its_shape) : data(memory), dtype(kDTypeOf<T>), shape(its_shape) {}

  explicit operator bool() const { return data != nullptr; }
  std::int64_t count() const { return shape.count(); }
  // The elements, null when there is no memory. LOCKSTEP_CHECK: T is the element type.
  template <typename T>
  const T* as() const {
    if (dtype != kDTypeOf<T> && data != nullptr) internal::wrong_element_type(kDTypeOf<T>, dtype, shape);
    return static_cast<const T*>(data);
  }
  const float* floats() const { return as<float>(); }
};

// What a kernel writes: every element, or with `accumulate` adds to every element. Null `data`: not wanted.
struct OutputView {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  Shape shape = {0};
  bool accumulate = false;

  OutputView() = default;
  OutputView(void* memory, DType type, const Shape& its_shape, bool adds = false)
      : data(memory), dtype(type), shape(its_shape), accumulate(adds) {}
  template <typename T>
  OutputView(T* memory, const Shape& its_shape, bool adds = false)
      : data(memory), dtype(kDTypeOf<T>), shape(its_shape), accumulate(adds) {}

  explicit operator bool() const { return data != nullptr; }
  operator InputView() const { return {data, dtype, shape}; }  // for operators that work in place
  std::int64_t count() const { return shape.count(); }
  template <typename T>
  T* as() const {
    if (dtype != kDTypeOf<T> && data != nullptr) internal::wrong_element_type(kDTypeOf<T>, dtype, shape);
    return static_cast<T*>(data);
  }
  float* floats() const { return as<float>(); }
};

// As kernels take them.
using In = const InputView&;
using Out = const OutputView&;

}  // namespace lockstep
#pragma GCC visibility pop
