#include "tests/torch/host_cuda.h"

#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace lockstep::testing {
namespace {

constexpr int kDevices = 8;
constexpr std::chrono::microseconds kSlow{500};  // so that what does not wait for the work sees old values

std::array<std::atomic<Stream*>, kDevices> g_streams{};
thread_local c10::DeviceIndex t_device = 0;

Stream& stream_of(c10::DeviceIndex device) {
  Stream* const stream = g_streams.at(static_cast<std::size_t>(device));
  TORCH_CHECK(stream != nullptr, "no HostCuda for cuda:", static_cast<int>(device));
  return *stream;
}

// One stream for each device.
class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return at::kCUDA; }
  at::Device exchangeDevice(at::Device device) const override {
    return {at::kCUDA, std::exchange(t_device, device.index())};
  }
  at::Device getDevice() const override { return {at::kCUDA, t_device}; }
  void setDevice(at::Device device) const override { t_device = device.index(); }
  void uncheckedSetDevice(at::Device device) const noexcept override { t_device = device.index(); }
  c10::Stream getStream(at::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, {at::kCUDA, device.has_index() ? device.index() : t_device});
  }
  c10::Stream getDefaultStream(at::Device device) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    TORCH_CHECK(stream.device_index() == t_device,
                "CUDA's default streams have one handle, which means that of cuda:", static_cast<int>(t_device),
                ", the current device");
    return stream_of(stream.device_index()).native();
  }
  bool isStreamCapturing(const c10::Stream& stream) const override {
    return stream_of(stream.device_index()).is_capturing();
  }
  void synchronizeStream(const c10::Stream& stream) const override { stream_of(stream.device_index()).synchronize(); }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard)

// That there is a GPU. PyTorch looks for a class of this name.
class CUDAHooks final : public at::CUDAHooksInterface {
 public:
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  int getNumGPUs() const override { return kDevices; }
  c10::DeviceIndex current_device() const override { return t_device; }
  c10::DeviceIndex getCurrentDevice() const override { return t_device; }
  void setCurrentDevice(c10::DeviceIndex device) const override { t_device = device; }
  bool isPinnedPtr(const void*) const override { return false; }
};
using at::CUDAHooksRegistry;
using at::RegistererCUDAHooksRegistry;
REGISTER_CUDA_HOOKS(CUDAHooks)

// The same memory as a tensor of that device. `owner` keeps it alive, also if set_data() gives `tensor` another.
at::Tensor on(at::Device device, const at::Tensor& tensor) {
  return at::for_blob(tensor.data_ptr(), tensor.sizes())
      .strides(tensor.strides())
      .deleter([owner = tensor.storage()](void*) {})
      .options(tensor.options().device(device))
      .target_device(device)
      .make_tensor();
}

// Makes an argument the CPU's. A tensor becomes one of its own, as its memory is what a kernel gets: set_data() may
// replace the memory later. Returns the GPU on which the operator runs, or -1.
c10::DeviceIndex to_host(c10::IValue& argument) {
  c10::DeviceIndex found = -1;
  if (argument.isTensor() && argument.toTensor().defined()) {
    const at::Tensor tensor = argument.toTensor();
    if (tensor.is_cuda()) found = tensor.device().index();
    argument = on(at::kCPU, tensor);
  } else if (argument.isTensorList()) {
    std::vector<at::Tensor> tensors;
    for (const at::Tensor& tensor : argument.toTensorVector()) {
      c10::IValue each(tensor);
      found = std::max(found, to_host(each));
      tensors.push_back(each.toTensor());
    }
    argument = tensors;
  } else if (argument.isDevice() && argument.toDevice().is_cuda()) {
    found = argument.toDevice().has_index() ? argument.toDevice().index() : t_device;
    argument = at::Device(at::kCPU);
  }
  return found;
}

// The argument that the operator changes and returns, or -1.
int changed_argument(const c10::FunctionSchema& schema) {
  if (schema.returns().size() != 1 || schema.returns()[0].alias_info() == nullptr) return -1;
  for (std::size_t i = 0; i < schema.arguments().size(); ++i)
    if (const auto* alias = schema.arguments()[i].alias_info(); alias != nullptr && alias->isWrite())
      return static_cast<int>(i);
  return -1;
}

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto arguments = static_cast<std::ptrdiff_t>(op.schema().arguments().size());
  torch::jit::Stack given(stack->end() - arguments, stack->end());
  stack->erase(stack->end() - arguments, stack->end());
  const int changed = changed_argument(op.schema());
  const c10::IValue result = changed < 0 ? c10::IValue() : given[static_cast<std::size_t>(changed)];
  c10::DeviceIndex device = -1;
  for (c10::IValue& argument : given) device = std::max(device, to_host(argument));
  TORCH_CHECK(device >= 0, "an operator of CUDA without a tensor of CUDA: ", op.operator_name());
  const auto run = [op, device, given = std::move(given)] {
    const at::NoGradGuard no_grad;
    torch::jit::Stack results = given;
    op.callBoxed(&results);
    for (c10::IValue& each : results)
      if (each.isTensor() && each.toTensor().defined()) each = on({at::kCUDA, device}, each.toTensor());
    return results;
  };
  Stream& stream = stream_of(device);
  if (changed >= 0 && result.toTensor().is_cuda()) {
    static_cast<HostStream*>(stream.native())->push(op.schema().name(), [run] {
      std::this_thread::sleep_for(kSlow);
      run();
    });
    stack->push_back(result);
    return;
  }
  stream.synchronize();
  if (changed >= 0) {
    run();
    stack->push_back(result);
    return;
  }
  for (c10::IValue& each : run()) stack->push_back(std::move(each));
}

// As checkpoints are read.
at::Tensor& set_storage(at::Tensor& tensor, at::Storage source, std::int64_t offset, at::IntArrayRef sizes,
                        at::IntArrayRef strides) {
  tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(source));
  tensor.unsafeGetTensorImpl()->set_storage_offset(offset);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return tensor;
}

// Functions that change no values, but which memory a tensor has.
TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("copy_", torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}
TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>()); }

}  // namespace

HostCuda::HostCuda(RecordingDevice& device) : index_(device.index()), stream_(device.new_stream()) {
  g_streams.at(static_cast<std::size_t>(index_)) = stream_.get();
}
HostCuda::~HostCuda() {
  stream_->synchronize();
  g_streams.at(static_cast<std::size_t>(index_)) = nullptr;
}
at::Device HostCuda::device() const { return {at::kCUDA, static_cast<c10::DeviceIndex>(index_)}; }

}  // namespace lockstep::testing
