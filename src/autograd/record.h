// The steps of every operator around its kernels: check its tensors, find the kernels by the device, attach its node.
#pragma once

#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/autograd/node.h"
#include "lockstep/core/error.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

// Throws InvalidArgument naming the operator unless `x` has `dims` dimensions (-1: any) on `device` (null: any).
inline void check_place(const char* operation, const char* what, const Tensor& x, int dims, const Device* device) {
  if (dims >= 0 && x.shape().dims() != static_cast<std::size_t>(dims))
    throw InvalidArgument("{}: {} must have {} dimensions, got {}", operation, what, dims, x.shape().text());
  if (device != nullptr && device != &x.device())
    throw InvalidArgument(
        "{}: {} is on {}, the first input on {}: move a module or a tensor with .to(device), batches with "
        "DataLoaderOptions::device",
        operation, what, x.device().name(), device->name());
}

// The same, and `x` must be float32.
inline void check_input(const char* operation, const char* what, const Tensor& x, int dims, const Device* device = nullptr) {
  if (!x.defined()) throw InvalidArgument("{}: {} is undefined", operation, what);
  if (x.dtype() != DType::kFloat32) throw InvalidArgument("{}: {} must be float32, got {}", operation, what, name_of(x.dtype()));
  check_place(operation, what, x, dims, device);
}

// The same for an activation: float32, float16 or bfloat16.
inline void check_activation(const char* operation, const char* what, const Tensor& x, int dims, const Device* device = nullptr) {
  if (!x.defined() || x.dtype() == DType::kFloat32) return check_input(operation, what, x, dims, device);
  if (x.dtype() != DType::kFloat16 && x.dtype() != DType::kBFloat16)
    throw InvalidArgument("{}: {} must be float32, float16 or bfloat16, got {}", operation, what, name_of(x.dtype()));
  check_place(operation, what, x, dims, device);
}

// Attaches NodeType(inputs, args...) to `result` when one of the inputs wants a gradient.
template <typename NodeType, typename... Args>
void record(const Tensor& result, std::vector<Tensor> inputs, Args&&... args) {
  if (recording(inputs)) attach(result, std::make_shared<NodeType>(std::move(inputs), std::forward<Args>(args)...));
}

// The same memory as a tensor without history: what a node may save of its own result without owning itself.
inline Tensor detached(const Tensor& tensor) { return tensor.reshaped(tensor.shape()); }

inline const KernelTable& kernels_of(const Tensor& tensor) { return tensor.device().kernels(); }
inline Stream& stream_of(const Tensor& tensor) { return tensor.device().default_stream(); }

// How many rows of `channels` values; of no channels there are none.
inline std::int64_t rows_of(const Tensor& tensor, std::int64_t channels) { return channels == 0 ? 0 : tensor.count() / channels; }

}  // namespace lockstep
