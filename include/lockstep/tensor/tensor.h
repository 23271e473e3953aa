// Tensor: a contiguous block of numbers with a shape, a dtype and a device. It is a handle: copies share the memory.
//
// Images are (N, H, W, C). This header does not depend on autograd, which attaches an AutogradMeta.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iosfwd>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "lockstep/core/buffer.h"
#include "lockstep/core/device.h"
#include "lockstep/core/device_scope.h"
#include "lockstep/core/dtype.h"
#include "lockstep/core/error.h"
#include "lockstep/core/shape.h"
#include "lockstep/core/view.h"
#include "lockstep/tensor/differentiable.h"

#pragma GCC visibility push(default)
namespace lockstep {

class Tensor : public DifferentiableMembers {
 public:
  Tensor() = default;  // undefined: no memory
  Tensor(const Tensor&) = default;
  Tensor(Tensor&&) noexcept = default;
  Tensor& operator=(const Tensor&) & = default;  // not for results: x[0] = y would change nothing
  Tensor& operator=(Tensor&&) & noexcept = default;

  // Uninitialised memory from the device's allocator. default_device(): see core/device_scope.h.
  static Tensor empty(const Shape& shape, DType dtype = DType::kFloat32, Device& device = default_device());
  static Tensor zeros(const Shape& shape, DType dtype = DType::kFloat32, Device& device = default_device());
  static Tensor full(const Shape& shape, float value, Device& device = default_device());
  // A tensor in existing memory; `buffer` must hold at least shape.count() elements.
  static Tensor wrap(Buffer buffer, const Shape& shape, DType dtype = DType::kFloat32);
  // A copy of `values`.
  template <typename T>
  static Tensor from(std::span<const T> values, const Shape& shape, Device& device = default_device());

  bool defined() const { return impl_ != nullptr; }
  const Shape& shape() const { return impl().shape; }
  std::int64_t count() const { return impl().count; }
  DType dtype() const { return impl().dtype; }
  Device& device() const { return *impl().buffer.device(); }
  std::size_t bytes() const { return static_cast<std::size_t>(count()) * size_of(dtype()); }
  const Buffer& buffer() const { return impl().buffer; }

  // The elements, for kernels of the tensor's device. Throws InvalidArgument if T is not the dtype.
  template <typename T> T* data() const {
    check_dtype(kDTypeOf<T>);
    return reinterpret_cast<T*>(impl().buffer.data());
  }
  // The elements of a CPU tensor; throws InvalidArgument for other devices.
  template <typename T> std::span<T> span() const {
    check_on_host();
    return {data<T>(), static_cast<std::size_t>(count())};
  }

  // The view that kernels take, which does not own the memory. For an undefined tensor: an operand that was left out.
  operator InputView() const { return defined() ? InputView(buffer().data(), dtype(), shape()) : InputView(); }
  operator OutputView() const { return defined() ? OutputView(buffer().data(), dtype(), shape()) : OutputView(); }

  // The value of a tensor with one element of a floating type, as float32. Blocks until the device has computed it.
  float item() const;
  // The same as a T. Throws InvalidArgument unless both are integers that fit, or both are floating types.
  template <typename T> T item() const {
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(integer_item(std::numeric_limits<T>::min(), std::numeric_limits<T>::max()));
    else
      return static_cast<T>(floating_item());
  }

  // Shares the memory and version() under another shape of equal count. Not recorded by autograd: use reshape() of
  // shapes.h for that.
  Tensor reshaped(const Shape& shape) const;
  // A copy on `device` (this tensor itself when it is there already). Not differentiable. Blocks as copy_from does.
  Tensor to(Device& device) const;
  Tensor clone() const;
  // Copies from a tensor of the same shape and dtype on any device. A copy to a GPU may return before it is done, but
  // the source may change at once (see Device::upload); a copy from a GPU to the CPU blocks until the values have
  // arrived. copy_from and fill are not recorded for backward.
  void copy_from(const Tensor& source) const;
  void fill(float value) const;  // float32, else InvalidArgument

  // How often the values were changed in place, through this tensor or a view of it: by fill, copy_from, loading, or an
  // optimizer's step, also to the same values. Backward compares versions, so it never mixes old values with new ones;
  // a result that was changed can neither be read by a recorded operator nor be the root of backward. A caller that
  // writes through data() or span() must call mark_changed().
  std::uint64_t version() const { return *impl().version; }
  void mark_changed() const { ++*impl().version; }

  // Makes this handle and all its copies refer to other memory of the same shape and dtype. Modules use it to move to a
  // device, and gradients to become views of a bucket. Views keep the old memory. Counts as a change for version().
  void rebind(Buffer buffer) const;

  // Differentiates this scalar (or, with a given gradient, a tensor of any shape) with respect to every leaf that it
  // depends on; see autograd/engine.h.
  void backward() const;
  void backward(const BackwardOptions& options) const;

  AutogradMeta* autograd_meta() const { return impl_ ? impl_->autograd.get() : nullptr; }
  void set_autograd_meta(std::shared_ptr<AutogradMeta> meta) const { impl().autograd = std::move(meta); }
  bool is_same(const Tensor& other) const { return impl_ == other.impl_; }

 private:
  struct Impl {
    Buffer buffer;
    Shape shape;
    std::int64_t count = 0;
    DType dtype = DType::kFloat32;
    std::shared_ptr<std::uint64_t> version;  // shared by all views, see reshaped()
    std::shared_ptr<AutogradMeta> autograd;
  };
  Impl& impl() const;  // throws InvalidArgument if undefined
  std::int64_t integer_item(std::int64_t least, std::uint64_t most) const;
  double floating_item() const;
  void check_dtype(DType wanted) const;
  void check_on_host() const;

  std::shared_ptr<Impl> impl_;
};

using Tensors = std::vector<Tensor>;

// "tensor([[1, 2], [3, 4]], shape=(2, 2), dtype=float32, device=cpu)", one row per line; more than 1000 elements are
// abbreviated. Copies the values to the CPU and blocks until they are computed; throws as item() does in a capture.
std::ostream& operator<<(std::ostream& out, const Tensor& tensor);

// Options of a backward pass, see autograd/engine.h.
struct BackwardOptions {
  Tensor gradient = {};  // of the differentiated tensor, with its shape, dtype and device. Undefined: 1, for a scalar
  bool retain_graph = false;  // keep the tape for another pass
};

template <typename T> Tensor Tensor::from(std::span<const T> values, const Shape& shape, Device& device) {
  if (static_cast<std::int64_t>(values.size()) != shape.count())
    throw InvalidArgument("Tensor::from: {} values do not fill shape {}", values.size(), shape.text());
  const Tensor tensor = empty(shape, kDTypeOf<T>, cpu_device());
  std::copy(values.begin(), values.end(), tensor.data<T>());
  return tensor.to(device);
}

}  // namespace lockstep
#pragma GCC visibility pop
