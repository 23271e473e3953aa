#include "lockstep/autograd/extend.h"

#include "lockstep/autograd/ops.h"

namespace lockstep {

void check_place(std::string_view operation, std::string_view what, const Tensor& x, int dims, const Device* device) {
  if (!x.defined()) throw InvalidArgument("{}: {} is undefined", operation, what);
  if (dims >= 0 && x.shape().dims() != static_cast<std::size_t>(dims))
    throw InvalidArgument("{}: {} must have {} dimensions, got {}", operation, name_argument(what, x), dims, x.shape().text());
  if (device != nullptr && device != &x.device())
    throw InvalidArgument(
        "{}: {} is on {}, the first input on {}: move a module or a tensor with .to(device), batches with "
        "DataLoaderOptions::device",
        operation, name_argument(what, x), x.device().name(), device->name());
}

void check_input(std::string_view operation, std::string_view what, const Tensor& x, int dims, const Device* device, DType type) {
  if (x.defined() && x.dtype() != type)
    throw InvalidArgument("{}: {} must be {}, got {}", operation, name_argument(what, x), name_of(type), name_of(x.dtype()));
  check_place(operation, what, x, dims, device);
}

void check_activation(std::string_view operation, std::string_view what, const Tensor& x, int dims, const Device* device) {
  if (x.defined() && x.dtype() != DType::kFloat32 && x.dtype() != DType::kFloat16 && x.dtype() != DType::kBFloat16)
    throw InvalidArgument("{}: {} must be float32, float16 or bfloat16, got {}", operation, name_argument(what, x), name_of(x.dtype()));
  check_place(operation, what, x, dims, device);
}

void check_alike(std::string_view operation, std::string_view what, const Tensor& x, const Tensor& like, int dims) {
  check_activation(operation, what, x, dims, &like.device());
  if (x.dtype() != like.dtype())
    throw InvalidArgument("{}: {} and {} differ: cast() {} or the first input", operation, name_of(like.dtype()), name_of(x.dtype()),
                          name_argument(what, x));
}

Tensor autocast(const Tensor& x) {
  return x.dtype() == DType::kFloat32 && AutoCast::active() != DType::kFloat32 ? cast(x, AutoCast::active()) : x;
}

Tensor read_as(const Tensor& x, const Tensor& parameter) {
  if (!parameter.defined() || parameter.dtype() == x.dtype()) return parameter;
  const Tensor copy = empty_like(x, parameter.shape());
  kernels_of(x).convert(parameter, copy, stream_of(x));
  return copy;
}

}  // namespace lockstep
