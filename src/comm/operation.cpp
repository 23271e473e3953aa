#include "lockstep/comm/operation.h"

#include <fmt/format.h>

namespace lockstep {

std::string_view name_of(ReduceOp op) {
  constexpr std::string_view kNames[] = {"sum", "avg", "product", "min", "max", "bit_and", "bit_or", "bit_xor"};
  const auto index = static_cast<std::size_t>(op);
  return index < std::size(kNames) ? kNames[index] : "invalid op";
}

std::string_view name_of(OperationKind kind) {
  constexpr std::string_view kNames[] = {"barrier", "broadcast", "all_reduce", "all_gather",     "allocate",
                                         "reduce",  "gather",    "scatter",    "reduce_scatter", "all_to_all"};
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
  else if (signature.kind != OperationKind::kBarrier)
    add(fmt::format("{} x {}", name_of(signature.dtype), signature.count));
  if (is_reduction(signature.kind)) add(std::string(name_of(signature.op)));
  if (signature.root >= 0) add(fmt::format("root {}", signature.root));
  std::string text = fmt::format("{} #{}", name_of(signature.kind), signature.sequence);
  return details.empty() ? text : text + " (" + details + ")";
}

}  // namespace lockstep
