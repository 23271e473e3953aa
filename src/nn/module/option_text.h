// Prints the options of layers, for Module::extra_repr().
#pragma once

#include <fmt/format.h>

#include <string>
#include <variant>

#include "lockstep/autograd/activation.h"
#include "lockstep/autograd/padding.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::nn {

// "(5, 5)"
inline std::string pair_text(Size2 size) { return Shape{size[0], size[1]}.text(); }

// ", activation=relu"; empty for none.
inline std::string activation_text(Activation activation) {
  return activation == Activation::kNone ? "" : fmt::format(", activation={}", name_of(activation));
}

// ", groups=2"; empty for one.
inline std::string groups_text(std::int64_t groups) { return groups == 1 ? "" : fmt::format(", groups={}", groups); }

// ", dilation=(2, 2)"; empty for none.
inline std::string dilation_text(Size2 dilation) {
  return dilation == Size2{1, 1} ? "" : ", dilation=" + pair_text(dilation);
}

// ", padding=same"; empty if there is none.
inline std::string padding_text(const PaddingRule& rule) {
  if (std::holds_alternative<Same>(rule)) return ", padding=same";
  const auto& [top, left, bottom, right] = std::get<Padding>(rule);
  if (top == 0 && left == 0 && bottom == 0 && right == 0) return "";
  if (top == left && top == bottom && top == right) return fmt::format(", padding={}", top);
  return fmt::format(", padding=(top={}, left={}, bottom={}, right={})", top, left, bottom, right);
}
inline std::string padding_text(const PaddingRule1d& rule) {
  if (std::holds_alternative<Same>(rule)) return ", padding=same";
  const auto& [left, right] = std::get<Padding1d>(rule);
  if (left == 0 && right == 0) return "";
  return left == right ? fmt::format(", padding={}", left) : fmt::format(", padding=(left={}, right={})", left, right);
}

}  // namespace lockstep::nn
