#include "lockstep/tensor/tensor.h"

#include <array>
#include <cstddef>
#include <cstring>
#include <vector>

#include "src/core/base/half.h"

namespace lockstep {

namespace {

// The size of a tensor; a count that fits into 64 bits may have a size that does not.
std::size_t bytes_of(const Shape& shape, DType dtype) {
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(static_cast<std::size_t>(shape.count()), size_of(dtype), &bytes))
    throw InvalidArgument("Tensor: shape {} of {} needs more bytes than 64 bits can count", shape.text(),
                          name_of(dtype));
  return bytes;
}

// Called before the host waits for values of a device.
void check_values_exist(const char* operation, const Tensor& tensor) {
  if (tensor.device().default_stream().is_capturing())
    throw InvalidArgument(
        "{}: the step is being recorded as a graph, so the values of this tensor of shape {} on {} do not exist yet: "
        "return the tensor "
        "from the step and read it afterwards",
        operation, tensor.shape().text(), tensor.device().name());
}

// Between two GPUs: runs after the source is computed, and before it changes again.
void copy_across(const Tensor& source, const Tensor& destination) {
  Stream &from = source.device().default_stream(), &to = destination.device().default_stream();
  const auto computed = source.device().new_event();
  computed->record(from);
  computed->stream_wait(to);
  destination.device().copy(destination.buffer().data(), source.buffer().data(), source.bytes(), to);
  const auto copied = destination.device().new_event();
  copied->record(to);
  copied->stream_wait(from);
}

}  // namespace

Tensor::Impl& Tensor::impl() const {
  if (!impl_) throw InvalidArgument("Tensor: an undefined tensor was used");
  return *impl_;
}

void Tensor::check_dtype(DType wanted) const {
  if (dtype() != wanted)
    throw InvalidArgument("Tensor: {} requested from a {} tensor of shape {}", name_of(wanted), name_of(dtype()),
                          shape().text());
}

void Tensor::check_on_host() const {
  if (device().kind() != DeviceKind::kCpu)
    throw InvalidArgument(
        "Tensor::span: this tensor of shape {} is on {}, whose memory the host cannot read: use to(cpu_device()) "
        "first",
        shape().text(), device().name());
}

Tensor Tensor::wrap(Buffer buffer, const Shape& shape, DType dtype) {
  const std::int64_t count = shape.count();
  const std::size_t bytes = bytes_of(shape, dtype);
  if (buffer.device() == nullptr || buffer.bytes() < bytes)
    throw InvalidArgument("Tensor::wrap: shape {} of {} needs {} bytes, but the buffer has {}", shape.text(),
                          name_of(dtype), bytes, buffer.bytes());
  Tensor tensor;
  tensor.impl_ = std::make_shared<Impl>();
  tensor.impl_->buffer = std::move(buffer);
  tensor.impl_->shape = shape;
  tensor.impl_->count = count;
  tensor.impl_->dtype = dtype;
  tensor.impl_->version = std::make_shared<std::uint64_t>(0);
  return tensor;
}

Tensor Tensor::empty(const Shape& shape, DType dtype, Device& device) {
  return wrap(device.allocate(bytes_of(shape, dtype)), shape, dtype);
}

Tensor Tensor::zeros(const Shape& shape, DType dtype, Device& device) {
  Tensor tensor = empty(shape, dtype, device);
  if (dtype == DType::kFloat32) {
    tensor.fill(0);
  } else {
    const std::vector<std::byte> zeros(tensor.bytes());
    device.upload(tensor.buffer().data(), zeros.data(), zeros.size(), device.default_stream());
  }
  return tensor;
}

Tensor Tensor::full(const Shape& shape, float value, Device& device) {
  Tensor tensor = empty(shape, DType::kFloat32, device);
  tensor.fill(value);
  return tensor;
}

namespace {

// The bytes of the only element, on the host.
std::array<std::byte, 8> only_element(const Tensor& tensor) {
  if (tensor.count() != 1)
    throw InvalidArgument("Tensor::item: shape {} has {} elements, not one", tensor.shape().text(), tensor.count());
  check_values_exist("Tensor::item", tensor);
  std::array<std::byte, 8> bytes{};
  tensor.device().copy(bytes.data(), tensor.buffer().data(), tensor.bytes(), tensor.device().default_stream());
  tensor.device().default_stream().synchronize();
  return bytes;
}

template <typename T> T read_as(const std::array<std::byte, 8>& bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

}  // namespace

float Tensor::item() const { return static_cast<float>(floating_item()); }

double Tensor::floating_item() const {
  if (dtype() != DType::kFloat64 && dtype() != DType::kFloat16 && dtype() != DType::kBFloat16)
    check_dtype(DType::kFloat32);
  const auto bytes = only_element(*this);
  switch (dtype()) {
    case DType::kFloat64: return read_as<double>(bytes);
    case DType::kFloat16: return double{widen(read_as<Float16>(bytes))};
    case DType::kBFloat16: return double{widen(read_as<BFloat16>(bytes))};
    default: return double{read_as<float>(bytes)};
  }
}

std::int64_t Tensor::integer_item(std::int64_t least, std::uint64_t most) const {
  if (dtype() != DType::kInt8 && dtype() != DType::kUInt8 && dtype() != DType::kInt32) check_dtype(DType::kInt64);
  const auto bytes = only_element(*this);
  const std::int64_t value = dtype() == DType::kInt8    ? read_as<std::int8_t>(bytes)
                             : dtype() == DType::kUInt8 ? read_as<std::uint8_t>(bytes)
                             : dtype() == DType::kInt32 ? read_as<std::int32_t>(bytes)
                                                        : read_as<std::int64_t>(bytes);
  if (value < least || (value > 0 && static_cast<std::uint64_t>(value) > most))
    throw InvalidArgument("Tensor::item: the value {} does not fit the type, which holds {} to {}", value, least, most);
  return value;
}

Tensor Tensor::reshaped(const Shape& wanted) const {
  if (wanted.count() != count())
    throw InvalidArgument("Tensor::reshaped: {} cannot become {}", shape().text(), wanted.text());
  Tensor view = wrap(buffer(), wanted, dtype());
  view.impl_->version = impl().version;
  return view;
}

Tensor Tensor::to(Device& target) const {
  if (&target == &device()) return *this;
  Tensor copy = empty(shape(), dtype(), target);
  copy.copy_from(*this);
  return copy;
}

Tensor Tensor::clone() const {
  Tensor copy = empty(shape(), dtype(), device());
  copy.copy_from(*this);
  return copy;
}

void Tensor::copy_from(const Tensor& source) const {
  if (source.shape() != shape() || source.dtype() != dtype())
    throw InvalidArgument("Tensor::copy_from: cannot copy {} {} into {} {}", name_of(source.dtype()),
                          source.shape().text(), name_of(dtype()), shape().text());
  if (is_same(source) || count() == 0) return;
  mark_changed();
  Device &here = device(), &there = source.device();
  if (here.kind() == DeviceKind::kCpu && there.kind() != DeviceKind::kCpu) {
    check_values_exist("Tensor::copy_from", source);
    there.copy(buffer().data(), source.buffer().data(), bytes(), there.default_stream());
    there.default_stream().synchronize();
  } else if (there.kind() == DeviceKind::kCpu && here.kind() != DeviceKind::kCpu) {
    here.upload(buffer().data(), source.buffer().data(), bytes(), here.default_stream());
  } else if (&here != &there) {
    copy_across(source, *this);
  } else {
    here.copy(buffer().data(), source.buffer().data(), bytes(), here.default_stream());
  }
}

void Tensor::fill(float value) const {
  if (dtype() != DType::kFloat32)
    throw InvalidArgument(
        "Tensor::fill: {} of shape {}, expected float32: fill a float32 tensor and convert it, or write its elements",
        name_of(dtype()), shape().text());
  mark_changed();
  device().kernels().fill(*this, value, device().default_stream());
}

void Tensor::rebind(Buffer buffer) const {
  if (buffer.device() == nullptr || buffer.bytes() < bytes())
    throw InvalidArgument("Tensor::rebind: {} bytes do not hold shape {}", buffer.bytes(), shape().text());
  impl().buffer = std::move(buffer);
  mark_changed();
}

void Tensor::backward() const { backward({}); }

void Tensor::backward(const BackwardOptions& options) const {
  if (autograd_meta() == nullptr)
    throw InvalidArgument("backward: this tensor of shape {} was not computed from anything that requires a gradient",
                          defined() ? shape().text() : "(undefined)");
  autograd_meta()->backward(*this, options);
}

}  // namespace lockstep
