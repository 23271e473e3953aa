#include "lockstep/autograd/extend.h"

#include "lockstep/autograd/ops.h"

namespace lockstep {

namespace {

bool is_activation_type(DType type) {
  return type == DType::kFloat32 || type == DType::kFloat16 || type == DType::kBFloat16;
}

}  // namespace

void check_place(std::string_view operation, std::string_view what, const Tensor& x, int dims, const Device* device) {
  if (!x.defined()) throw InvalidArgument("{}: {} is undefined", operation, what);
  if (dims >= 0 && x.shape().dims() != static_cast<std::size_t>(dims))
    throw InvalidArgument("{}: {} must have {} dimensions, got {}", operation, name_argument(what, x), dims,
                          x.shape().text());
  if (device != nullptr && device != &x.device())
    throw InvalidArgument(
        "{}: {} is on {}, but the first input is on {}: move a module or a tensor with .to(device), batches with "
        "DataLoaderOptions::device",
        operation, name_argument(what, x), x.device().name(), device->name());
}

void check_input(std::string_view operation, std::string_view what, const Tensor& x, int dims, const Device* device,
                 DType type) {
  if (x.defined() && x.dtype() != type)
    throw InvalidArgument("{}: {} must be {}, got {}", operation, name_argument(what, x), name_of(type),
                          name_of(x.dtype()));
  check_place(operation, what, x, dims, device);
}

void check_activation(std::string_view operation, std::string_view what, const Tensor& x, int dims,
                      const Device* device) {
  if (x.defined() && !is_activation_type(x.dtype()))
    throw InvalidArgument("{}: {} must be float32, float16 or bfloat16, got {}", operation, name_argument(what, x),
                          name_of(x.dtype()));
  check_place(operation, what, x, dims, device);
}

void check_alike(std::string_view operation, std::string_view what, const Tensor& x, const Tensor& like, int dims) {
  check_activation(operation, what, x, dims, &like.device());
  if (x.dtype() != like.dtype())
    throw InvalidArgument(
        "{}: {} and {} differ: cast() {} or the first input, or compute under an AutoCast, which converts "
        "them",
        operation, name_of(like.dtype()), name_of(x.dtype()), name_argument(what, x));
}

Tensor autocast(const Tensor& x) {
  return x.dtype() == DType::kFloat32 && AutoCast::active() != DType::kFloat32 ? cast(x, AutoCast::active()) : x;
}

void autocast_together(std::initializer_list<Tensor*> operands) {
  bool are_alike = true;
  for (Tensor* const x : operands) {
    *x = autocast(*x);
    are_alike = are_alike && x->dtype() == (*operands.begin())->dtype();
  }
  if (are_alike || AutoCast::active() == DType::kFloat32) return;
  for (Tensor* const x : operands) *x = cast(*x, AutoCast::active());
}

Tensor autocast_to_float32(const Tensor& x) {
  return AutoCast::active() != DType::kFloat32 && x.defined() && is_activation_type(x.dtype())
             ? cast(x, DType::kFloat32)
             : x;
}

std::optional<std::vector<Tensor>> autocast_to_widest(const std::vector<Tensor>& operands) {
  if (AutoCast::active() == DType::kFloat32) return std::nullopt;
  bool are_alike = true;
  for (const Tensor& x : operands) {
    if (!x.defined() || !is_activation_type(x.dtype())) return std::nullopt;  // the operator rejects or copies it
    are_alike = are_alike && x.dtype() == operands.front().dtype();
  }
  if (are_alike) return std::nullopt;
  std::vector<Tensor> wide;
  for (const Tensor& x : operands) wide.push_back(cast(x, DType::kFloat32));
  return wide;
}

std::optional<std::pair<Tensor, Tensor>> autocast_to_widest(const Tensor& a, const Tensor& b) {
  if (AutoCast::active() == DType::kFloat32 || !a.defined() || !b.defined() || a.dtype() == b.dtype())
    return std::nullopt;
  if (!is_activation_type(a.dtype()) || !is_activation_type(b.dtype())) return std::nullopt;  // the operator rejects it
  return std::pair(cast(a, DType::kFloat32), cast(b, DType::kFloat32));
}

Tensor read_as(const Tensor& x, const Tensor& parameter) {
  if (!parameter.defined() || parameter.dtype() == x.dtype()) return parameter;
  const Tensor copy = empty_like(x, parameter.shape());
  kernels_of(x).convert(parameter, copy, stream_of(x));
  return copy;
}

}  // namespace lockstep
