#include "lockstep/nn/pooling.h"

#include <fmt/format.h>

#include "src/nn/module/option_text.h"

namespace lockstep::nn {

namespace {

std::int64_t stride_of(std::int64_t stride, std::int64_t window) { return stride == 0 ? window : stride; }

const char* counted_text(bool count_include_pad) { return count_include_pad ? "" : ", count_include_pad=false"; }

}  // namespace

std::string AvgPool2d::extra_repr() const {
  const Size2 stride = {stride_of(options_.stride[0], window_[0]), stride_of(options_.stride[1], window_[1])};
  return fmt::format("{}, stride={}{}{}", pair_text(window_), pair_text(stride), padding_text(options_.padding),
                     counted_text(options_.count_include_pad));
}

std::string MaxPool1d::extra_repr() const {
  return fmt::format("{}, stride={}{}", window_, stride_of(options_.stride, window_), padding_text(options_.padding));
}

std::string AvgPool1d::extra_repr() const {
  return fmt::format("{}, stride={}{}{}", window_, stride_of(options_.stride, window_), padding_text(options_.padding),
                     counted_text(options_.count_include_pad));
}

}  // namespace lockstep::nn
