#include "lockstep/nn/conv_transpose.h"

#include <fmt/format.h>

#include "src/nn/layers/layer_parts.h"
#include "src/nn/module/option_text.h"

namespace lockstep::nn {

ConvTranspose2d::ConvTranspose2d(std::int64_t in_channels, std::int64_t out_channels, Size2 kernel,
                                 const ConvTranspose2dLayerOptions& options)
    : options_{options.stride, options.padding, options.output_padding, options.groups, options.dilation} {
  check_sizes("ConvTranspose2d", {in_channels, out_channels, kernel[0], kernel[1], options.groups});
  check_groups("ConvTranspose2d", in_channels, out_channels, options.groups);
  const std::int64_t of_group = out_channels / options.groups, fan_in = of_group * kernel[0] * kernel[1];
  weight = draw_uniform({in_channels, kernel[0], kernel[1], of_group}, fan_in);
  add_parameter("weight", weight);
  if (!options.bias) return;
  bias = draw_uniform({out_channels}, fan_in);
  add_parameter("bias", bias);
}

std::string ConvTranspose2d::extra_repr() const {
  const Shape& shape = weight.shape();
  const Size2 more = options_.output_padding;
  return fmt::format("{}, {}, kernel={}, stride={}{}{}{}{}{}", shape[0], shape[3] * options_.groups,
                     pair_text({shape[1], shape[2]}), pair_text(options_.stride), padding_text(options_.padding),
                     more == Size2{} ? "" : ", output_padding=" + pair_text(more), dilation_text(options_.dilation),
                     groups_text(options_.groups), bias.defined() ? "" : ", bias=false");
}

ConvTranspose1d::ConvTranspose1d(std::int64_t in_channels, std::int64_t out_channels, std::int64_t kernel,
                                 const ConvTranspose1dLayerOptions& options)
    : options_{options.stride, options.padding, options.output_padding, options.groups, options.dilation} {
  check_sizes("ConvTranspose1d", {in_channels, out_channels, kernel, options.groups});
  check_groups("ConvTranspose1d", in_channels, out_channels, options.groups);
  const std::int64_t of_group = out_channels / options.groups, fan_in = of_group * kernel;
  weight = draw_uniform({in_channels, kernel, of_group}, fan_in);
  add_parameter("weight", weight);
  if (!options.bias) return;
  bias = draw_uniform({out_channels}, fan_in);
  add_parameter("bias", bias);
}

std::string ConvTranspose1d::extra_repr() const {
  const Shape& shape = weight.shape();
  const auto text = [](const char* name, std::int64_t value, std::int64_t usual) {
    return value == usual ? "" : fmt::format(", {}={}", name, value);
  };
  return fmt::format("{}, {}, kernel={}, stride={}{}{}{}{}{}", shape[0], shape[2] * options_.groups, shape[1],
                     options_.stride, padding_text(options_.padding),
                     text("output_padding", options_.output_padding, 0), text("dilation", options_.dilation, 1),
                     groups_text(options_.groups), bias.defined() ? "" : ", bias=false");
}

}  // namespace lockstep::nn
