#include "src/ddp/checks/replicas.h"

#include <string>
#include <utility>

#include "lockstep/comm/agreement.h"
#include "lockstep/core/crypto.h"
#include "lockstep/core/error.h"
#include "lockstep/ddp/ddp.h"
#include "src/ddp/wrapper/agreed_options.h"

namespace lockstep {

namespace {

std::vector<std::string> lines_of(const nn::Module& module, const std::vector<std::string>& ignored) {
  std::vector<std::string> lines;
  for (const auto& [name, tensor] : without(module, module.named_parameters(), ignored))
    lines.push_back(fmt::format("parameter '{}' {} {}{}", name, name_of(tensor.dtype()), tensor.shape().text(),
                                requires_grad(tensor) ? "" : ", frozen"));
  for (const auto& [name, tensor] : without(module, module.named_buffers(), ignored))
    lines.push_back(fmt::format("buffer '{}' {} {}", name, name_of(tensor.dtype()), tensor.shape().text()));
  return lines;
}

}  // namespace

void check_same_model(GroupRef group, const nn::Module& module, const char* operation,
                      const std::vector<std::string>& ignored) {
  check_same_on_all_ranks(group, operation, lines_of(module, ignored), "built different models");
}

void broadcast_tensors(ProcessGroup& group, const std::vector<NamedTensor>& tensors, const char* what, int root) {
  std::vector<std::pair<Work, Device*>> under_way;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& tensor = tensors[i].tensor;
    const auto count = static_cast<std::size_t>(tensor.count());
    const CallOptions call{.purpose = {what, static_cast<std::int32_t>(i)}, .device = tensor.device().kind()};
    if (call.device == DeviceKind::kCpu)
      group.broadcast(tensor.buffer().data(), count, tensor.dtype(), root, call);
    else
      under_way.emplace_back(group.broadcast_async(tensor.buffer().data(), count, tensor.dtype(), root, call),
                             &tensor.device());
  }
  for (const auto& [work, device] : under_way) work.stream_wait(device->default_stream());
}

void replace_by_roots(ProcessGroup& group, const std::vector<NamedTensor>& tensors, const char* what, int root) {
  for (const auto& [name, tensor] : tensors) tensor.mark_changed();
  broadcast_tensors(group, tensors, what, root);
}

std::string hash_of(const std::vector<NamedTensor>& tensors) {
  crypto::Sha256 hash;
  for (const auto& [name, tensor] : tensors) {
    const std::string header = fmt::format("{} {} {}\n", name, name_of(tensor.dtype()), tensor.shape().text());
    hash.update(std::as_bytes(std::span(header)));
    const Tensor host = tensor.to(cpu_device());
    hash.update({host.buffer().data(), host.bytes()});
  }
  return crypto::hex(hash.finish());
}

void check_replicas_equal(ProcessGroup& group, const std::vector<NamedTensor>& tensors, const char* what) {
  const std::vector<std::string> hashes = group.all_gather_text(hash_of(tensors), {.purpose = {"replica check"}});
  std::string different;
  for (std::size_t r = 1; r < hashes.size(); ++r)
    if (hashes[r] != hashes[0]) different += fmt::format("{}{}", different.empty() ? "" : ", ", r);
  if (!different.empty())
    throw MismatchError(
        "{} of rank {} differ from rank 0's ({} tensors compared by SHA-256): the replicas are no longer equal", what,
        different, tensors.size());
}

}  // namespace lockstep
