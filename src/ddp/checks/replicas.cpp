#include "src/ddp/checks/replicas.h"

#include <algorithm>
#include <sstream>
#include <string>
#include <utility>

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

std::string join(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// "" when the lists are equal.
std::string first_difference(int rank, const std::vector<std::string>& mine, const std::vector<std::string>& rank0s) {
  for (std::size_t i = 0; i < std::max(mine.size(), rank0s.size()); ++i) {
    const std::string left = i < mine.size() ? mine[i] : "nothing", right = i < rank0s.size() ? rank0s[i] : "nothing";
    if (left != right) return fmt::format("rank {} has {} at position {}, rank 0 has {}", rank, left, i, right);
  }
  return "";
}

}  // namespace

void check_same_model(ProcessGroup& group, const nn::Module& module, const char* operation,
                      const std::vector<std::string>& ignored) {
  check_same_lines(group, lines_of(module, ignored), operation, "built different models");
}

void check_same_lines(ProcessGroup& group, const std::vector<std::string>& mine, const char* operation,
                      const char* what) {
  const CallOptions call{.purpose = {"model check"}};
  const std::vector<std::string> rank0s = split(group.broadcast_text(join(mine), 0, call));
  for (const std::string& difference : group.all_gather_text(first_difference(group.rank(), mine, rank0s), call))
    if (!difference.empty()) throw MismatchError("{}: the ranks {}: {}", operation, what, difference);
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
        "{} of rank {} differ from rank 0's ({} tensors compared by SHA-256): the replicas are no longer in lockstep",
        what, different, tensors.size());
}

}  // namespace lockstep
