// Tensor: a contiguous block of numbers with a shape, a dtype and a device. A handle: copies share the same memory.
//
// Images are (N, H, W, C). This header knows nothing of autograd: what differentiates hangs on a Tensor as an
// AutogradMeta, which autograd/ implements.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iosfwd>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/core/buffer.h"
#include "lockstep/core/device.h"
#include "lockstep/core/dtype.h"
#include "lockstep/core/error.h"
#include "lockstep/core/shape.h"
#include "lockstep/core/view.h"

#pragma GCC visibility push(default)
namespace lockstep {

class Tensor;
struct BackwardOptions;

// Autograd's state of a tensor; see autograd/variable.h.
class AutogradMeta {
 public:
  virtual ~AutogradMeta() = default;
  virtual void backward(const Tensor& root, const BackwardOptions& options) = 0;
};

class Tensor {
 public:
  Tensor() = default;  // undefined: no memory

  // Uninitialised memory from the device's allocator.
  static Tensor empty(const Shape& shape, DType dtype = DType::kFloat32, Device& device = cpu_device());
  static Tensor zeros(const Shape& shape, DType dtype = DType::kFloat32, Device& device = cpu_device());
  static Tensor full(const Shape& shape, float value, Device& device = cpu_device());
  // A view of memory that exists; `buffer` must hold at least shape.count() elements.
  static Tensor wrap(Buffer buffer, const Shape& shape, DType dtype = DType::kFloat32);
  // A copy of `values`, on the CPU.
  template <typename T>
  static Tensor from(std::span<const T> values, const Shape& shape);

  bool defined() const { return impl_ != nullptr; }
  const Shape& shape() const { return impl().shape; }
  std::int64_t count() const { return impl().count; }
  DType dtype() const { return impl().dtype; }
  Device& device() const { return *impl().buffer.device(); }
  std::size_t bytes() const { return static_cast<std::size_t>(count()) * size_of(dtype()); }
  const Buffer& buffer() const { return impl().buffer; }

  // The elements, on the tensor's device: only its kernels may follow the pointer. Throws InvalidArgument when T is not
  // the dtype.
  template <typename T>
  T* data() const {
    check_dtype(kDTypeOf<T>);
    return reinterpret_cast<T*>(impl().buffer.data());
  }
  // The elements of a CPU tensor; InvalidArgument for one of another device.
  template <typename T>
  std::span<T> span() const {
    check_on_host();
    return {data<T>(), static_cast<std::size_t>(count())};
  }

  // How kernels see it: a view that does not own the memory; of an undefined tensor an operand that was left out.
  operator InputView() const { return defined() ? InputView(buffer().data(), dtype(), shape()) : InputView(); }
  operator OutputView() const { return defined() ? OutputView(buffer().data(), dtype(), shape()) : OutputView(); }

  // The value of a one-element tensor of a floating type, as float32; blocks until the device has computed it.
  float item() const;

  // The same memory, and version(), under another shape of equal count (no autograd: see ops.h's reshape).
  Tensor reshaped(const Shape& shape) const;
  // A copy on `device` (this tensor itself when it is there already). Not differentiable. Blocks as copy_from does.
  Tensor to(Device& device) const;
  Tensor clone() const;
  // From the same shape and dtype, any device. Into a GPU: returns while the GPU may still be behind, but the source
  // may change at once (see Device::upload); from a GPU into the CPU: blocks until the values are there. Neither
  // copy_from nor fill is recorded for backward.
  void copy_from(const Tensor& source) const;
  void fill(float value) const;  // float32; else InvalidArgument

  // How often the values were changed in place, through this tensor or a view of it: by fill, copy_from, a load, an
  // optimizer's step. Backward compares, so that it never mixes old values with new ones, and a result that was changed
  // cannot be read by a recorded operator or be backward's root: its gradient would go to what the old values came
  // from. No bits are compared: a caller that puts the same values back has changed them all the same. A caller that
  // writes through data() or span() says so by mark_changed().
  std::uint64_t version() const { return *impl().version; }
  void mark_changed() const { ++*impl().version; }

  // Makes this handle, and every copy of it, stand for other memory of the same shape, dtype: how a module moves to a
  // device, and how a gradient becomes a view of a bucket. Views keep the old memory. A change of version().
  void rebind(Buffer buffer) const;

  // Differentiates this scalar, or a tensor of any shape with a gradient given, with respect to every leaf below it:
  // see autograd/engine.h.
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
    std::shared_ptr<std::uint64_t> version;  // one of all views, see reshaped()
    std::shared_ptr<AutogradMeta> autograd;
  };
  Impl& impl() const;  // throws InvalidArgument when undefined
  void check_dtype(DType wanted) const;
  void check_on_host() const;

  std::shared_ptr<Impl> impl_;
};

using Tensors = std::vector<Tensor>;

// "tensor([[1, 2], [3, 4]], shape=(2, 2), dtype=float32, device=cpu)", rows below each other. Of more than 1000
// elements only the edges are shown. Blocks until the device has computed the values, which are copied to the CPU;
// throws as item() does while a step is recorded.
std::ostream& operator<<(std::ostream& out, const Tensor& tensor);

// How a backward pass runs, see autograd/engine.h.
struct BackwardOptions {
  Tensor gradient = {};  // of the tensor that is differentiated: its shape, dtype, device. Undefined: 1, of a scalar
  bool retain_graph = false;  // keep the tape for another pass
};

template <typename T>
Tensor Tensor::from(std::span<const T> values, const Shape& shape) {
  Tensor tensor = empty(shape, kDTypeOf<T>);
  if (static_cast<std::int64_t>(values.size()) != shape.count())
    throw InvalidArgument("Tensor::from: {} values do not fill shape {}", values.size(), shape.text());
  std::copy(values.begin(), values.end(), tensor.data<T>());
  return tensor;
}

}  // namespace lockstep
#pragma GCC visibility pop
