#include "lockstep/comm/operation.h"

#include <fmt/format.h>

#include <cstring>

namespace lockstep {

std::uint64_t hash_of(const Layout& layout) {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a over words
  const auto add = [&](std::uint64_t word) { hash = (hash ^ word) * 0x100000001b3; };
  const bool sends_differ = !layout.send_counts.empty();
  add(layout.regions.size());
  for (const Region& region : layout.regions) add(region.count);
  if (!sends_differ)
    for (const std::size_t count : layout.receive_counts) add(count);
  return hash != 0 ? hash : 1;
}

std::uint64_t hash_of(const PassState& pass) {
  if (pass.pass == 0) return 0;
  std::uint64_t words[sizeof(PassState) / 8], hash = 0xcbf29ce484222325;
  std::memcpy(words, &pass, sizeof words);
  for (const std::uint64_t word : words) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 29;
  }
  return hash != 0 ? hash : 1;
}

std::string_view name_of(ReduceOp op) {
  constexpr std::string_view kNames[] = {"sum",     "avg",    "product", "min",       "max",
                                         "bit_and", "bit_or", "bit_xor", "premul_sum"};
  const auto index = static_cast<std::size_t>(op);
  return index < std::size(kNames) ? kNames[index] : "invalid op";
}

std::string_view name_of(OperationKind kind) {
  constexpr std::string_view kNames[] = {"barrier",        "broadcast",  "all_reduce",   "all_gather",
                                         "allocate",       "reduce",     "gather",       "scatter",
                                         "reduce_scatter", "all_to_all", "all_gather_v", "all_to_all_v"};
  const auto index = static_cast<std::size_t>(kind);
  return index < std::size(kNames) ? kNames[index] : "invalid operation";
}

bool is_reduction(OperationKind kind) {
  return kind == OperationKind::kAllReduce || kind == OperationKind::kReduce || kind == OperationKind::kReduceScatter;
}

std::string describe(const Signature& signature, const Purpose& purpose) {
  std::string details;
  const auto add = [&](const std::string& text) { details += (details.empty() ? "" : ", ") + text; };
  if (purpose.name != nullptr && purpose.index >= 0)
    add(fmt::format("{} {}", purpose.name, purpose.index));
  else if (purpose.name != nullptr)
    add(purpose.name);
  else if (signature.purpose_index >= 0)
    add(fmt::format("index {}", signature.purpose_index));
  if (signature.kind == OperationKind::kAllocate)
    add(fmt::format("{} bytes", signature.count));
  else if (signature.kind == OperationKind::kAllToAllV)
    add(std::string(name_of(signature.dtype)));
  else if (signature.kind != OperationKind::kBarrier)
    add(fmt::format("{} x {}", name_of(signature.dtype), signature.count));
  if (signature.layout != 0 && signature.kind != OperationKind::kAllToAllV)
    add(fmt::format("{} {:08x}", signature.kind == OperationKind::kAllGatherV ? "counts" : "coalesced",
                    signature.layout >> 32));
  if (is_reduction(signature.kind)) add(std::string(name_of(signature.op)));
  if (signature.root >= 0) add(fmt::format("root {}", signature.root));
  std::string text = fmt::format("{} #{}", name_of(signature.kind), signature.sequence);
  return details.empty() ? text : text + " (" + details + ")";
}

std::string describe_send(const Message& message) {
  return fmt::format("send to rank {} (tag {}, {} x {})", message.peer, message.tag, name_of(message.dtype),
                     message.count);
}

std::string describe_receive(const Message& message) {
  const std::string from = message.peer == kAnyRank ? "any rank" : fmt::format("rank {}", message.peer);
  return fmt::format("recv from {} (tag {}, {} x {})", from, message.tag, name_of(message.dtype), message.count);
}

}  // namespace lockstep
