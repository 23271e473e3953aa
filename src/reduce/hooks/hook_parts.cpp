#include "src/reduce/hooks/hook_parts.h"

#include <fmt/format.h>

namespace lockstep::hooks {

void resize(Buffer& memory, ProcessGroup& group, std::size_t bytes, DeviceKind device) {
  if (memory.bytes() == bytes) return;
  memory = {};
  memory = group.allocate(bytes, device);
}

void resize(Buffer& memory, Device& device, std::size_t bytes) {
  if (memory.bytes() == bytes) return;
  memory = {};
  memory = device.allocate(bytes);
}

std::string over(const CommHook& next) { return next ? " over " + next->describe() : ""; }

std::string refusal_of_next(const CommHook& next, const char* hook, std::span<const GradientInfo> gradients,
                            bool gets_gradients) {
  if (!next) return "";
  if (!next->averages())
    return fmt::format(
        "comm_hook {} over {}: the messages of {} would not be averaged: let {} send through it instead, or use only "
        "one of them",
        hook, next->describe(), hook, next->describe());
  if (!gets_gradients && !next->sends_any_message())
    return fmt::format(
        "comm_hook {} over {}: {} keeps state by parameter, but the messages of {} are not parameters: use only one of "
        "them",
        hook, next->describe(), next->describe(), hook);
  return next->refusal(gradients);
}

std::string refusal_of_gradients(const char* hook, std::span<const GradientInfo> gradients) {
  for (const GradientInfo& gradient : gradients)
    if (gradient.dtype != DType::kFloat32)
      return fmt::format(
          "comm_hook {}: it compresses float32, but receives the gradient of '{}' as {}: use bf16 or fp16, or no hook, "
          "for this model",
          hook, gradient.name, name_of(gradient.dtype));
  return "";
}

Purpose purpose_of(const GradBucket& bucket) { return {"bucket", bucket.index}; }

}  // namespace lockstep::hooks
