#include "src/train/strategies/parameter_server/parameter_messages.h"

#include <cstring>

namespace lockstep::train {

std::vector<NamedTensor> rest_of(const Replica& replica) {
  std::vector<NamedTensor> rest = replica.frozen;
  rest.insert(rest.end(), replica.buffers.begin(), replica.buffers.end());
  return rest;
}

std::vector<std::byte> bytes_of(const std::vector<NamedTensor>& tensors) {
  std::vector<std::byte> bytes;
  for (const auto& [name, tensor] : tensors) {
    const Tensor host = tensor.to(cpu_device());
    const auto* const data = static_cast<const std::byte*>(host.buffer().data());
    bytes.insert(bytes.end(), data, data + host.bytes());
  }
  return bytes;
}

void set_to_bytes(const std::vector<NamedTensor>& tensors, const std::vector<std::byte>& bytes) {
  std::size_t at = 0;
  for (const auto& [name, tensor] : tensors) {
    LOCKSTEP_CHECK(at + tensor.bytes() <= bytes.size(), "parameter_server: {} bytes end in '{}'", bytes.size(), name);
    const Tensor host = Tensor::empty(tensor.shape(), tensor.dtype(), cpu_device());
    std::memcpy(host.buffer().data(), bytes.data() + at, host.bytes());
    tensor.copy_from(host);
    at += host.bytes();
  }
}

void send_text(const Link& link, std::string_view text, int tag) {
  const auto bytes = static_cast<std::int64_t>(text.size());
  link.group->send(&bytes, 1, DType::kInt64, link.peer, tag);
  if (bytes > 0) link.group->send(text.data(), text.size(), DType::kUInt8, link.peer, tag);
}

std::string receive_text(const Link& link, int tag, const CallOptions& call) {
  std::int64_t bytes = 0;
  link.group->recv(&bytes, 1, DType::kInt64, link.peer, tag, call);
  std::string text(static_cast<std::size_t>(bytes), '\0');
  if (bytes > 0) link.group->recv(text.data(), text.size(), DType::kUInt8, link.peer, tag, call);
  return text;
}

}  // namespace lockstep::train
