#include "lockstep/nn/image_padding.h"

#include <fmt/format.h>

namespace lockstep::nn {

template <PaddingMode mode> std::string Pad2d<mode>::extra_repr() const {
  const auto& [top, left, bottom, right] = padding_;
  if (top == left && top == bottom && top == right) return fmt::format("{}", top);
  return fmt::format("top={}, left={}, bottom={}, right={}", top, left, bottom, right);
}
template <PaddingMode mode> std::string Pad1d<mode>::extra_repr() const {
  const auto& [left, right] = padding_;
  return left == right ? fmt::format("{}", left) : fmt::format("left={}, right={}", left, right);
}

template class Pad2d<PaddingMode::kZeros>;
template class Pad2d<PaddingMode::kReflect>;
template class Pad2d<PaddingMode::kReplicate>;
template class Pad1d<PaddingMode::kZeros>;
template class Pad1d<PaddingMode::kReflect>;
template class Pad1d<PaddingMode::kReplicate>;

}  // namespace lockstep::nn
