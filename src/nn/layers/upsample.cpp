#include "lockstep/nn/upsample.h"

#include <fmt/format.h>

#include "src/nn/layers/layer_parts.h"
#include "src/nn/module/option_text.h"

namespace lockstep::nn {

std::string Upsample::extra_repr() const {
  const bool is_nearest = options_.mode == UpsampleMode::kNearest;
  const std::string size = options_.size == Size2{} && options_.scale.height == options_.scale.width
                               ? fmt::format("scale={}", options_.scale.height)
                           : options_.size == Size2{}
                               ? fmt::format("scale=({}, {})", options_.scale.height, options_.scale.width)
                               : "size=" + pair_text(options_.size);
  return fmt::format("{}, mode={}{}", size, is_nearest ? "nearest" : "bilinear",
                     options_.align_corners ? ", align_corners" : "");
}

AdaptiveAvgPool2d::AdaptiveAvgPool2d(Size2 size) : size_(size) { check_sizes("AdaptiveAvgPool2d", {size[0], size[1]}); }
std::string AdaptiveAvgPool2d::extra_repr() const { return pair_text(size_); }

AdaptiveMaxPool2d::AdaptiveMaxPool2d(Size2 size) : size_(size) { check_sizes("AdaptiveMaxPool2d", {size[0], size[1]}); }
std::string AdaptiveMaxPool2d::extra_repr() const { return pair_text(size_); }

AdaptiveAvgPool1d::AdaptiveAvgPool1d(std::int64_t size) : size_(size) { check_sizes("AdaptiveAvgPool1d", {size}); }
std::string AdaptiveAvgPool1d::extra_repr() const { return fmt::format("{}", size_); }

AdaptiveMaxPool1d::AdaptiveMaxPool1d(std::int64_t size) : size_(size) { check_sizes("AdaptiveMaxPool1d", {size}); }
std::string AdaptiveMaxPool1d::extra_repr() const { return fmt::format("{}", size_); }

}  // namespace lockstep::nn
