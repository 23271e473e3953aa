#include "src/train/checkpoint/background/host_copies.h"

#include <utility>

#include "src/train/files/safetensors.h"

namespace lockstep::train::checkpoint {

Tensor HostCopies::copy(const std::string& key, const Tensor& tensor) {
  if (tensor.count() == 0) return Tensor::empty(tensor.shape(), tensor.dtype(), cpu_device());
  Device& device = tensor.device();
  Tensor host = std::exchange(kept_[key], Tensor());
  if (!host.defined() || host.shape() != tensor.shape() || host.dtype() != tensor.dtype())
    host = Tensor::wrap(device.allocate_pinned(tensor.bytes()), tensor.shape(), tensor.dtype());
  device.copy(host.buffer().data(), tensor.buffer().data(), tensor.bytes(), device.default_stream());
  copying_.insert(&device);
  taken_.emplace(key, host);
  return host;
}

void HostCopies::await_copies() {
  for (Device* const device : std::exchange(copying_, {})) device->default_stream().synchronize();
}

void HostCopies::take(std::vector<PlannedFile>& files) {
  await_copies();  // of a call that has thrown
  taken_.clear();
  for (PlannedFile& file : files) {
    FileContent content = file.content();
    if (!content.tensors.empty()) safetensors_header(content.tensors, content.metadata);  // throws before the copy
    if (!content.is_copy)
      for (NamedTensor& entry : content.tensors) entry.tensor = copy(file.name + "/" + entry.name, entry.tensor);
    file.content = [content = std::move(content)] { return content; };
  }
  await_copies();
  kept_ = std::exchange(taken_, {});
}

}  // namespace lockstep::train::checkpoint
