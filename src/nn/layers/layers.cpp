#include "lockstep/nn/layers.h"

#include <fmt/format.h>

#include "lockstep/nn/conv3d.h"
#include "src/nn/layers/layer_parts.h"
#include "src/nn/layers/low_rank.h"
#include "src/nn/module/option_text.h"

namespace lockstep::nn {

namespace {

// The options that differ from the defaults: ", activation=relu, bias=false".
std::string options_text(Activation activation, const Tensor& bias) {
  return activation_text(activation) + (bias.defined() ? "" : ", bias=false");
}

}  // namespace

Conv2d::Conv2d(std::int64_t in_channels, std::int64_t out_channels, Size2 kernel, const Conv2dLayerOptions& options)
    : options_{options.stride, options.padding, options.activation, options.groups, options.dilation} {
  check_sizes("Conv2d", {in_channels, out_channels, kernel[0], kernel[1], options.groups, options.dilation[0],
                         options.dilation[1]});
  check_groups("Conv2d", in_channels, out_channels, options.groups);
  const std::int64_t seen = in_channels / options.groups, fan_in = seen * kernel[0] * kernel[1];
  weight = draw_uniform({out_channels, kernel[0], kernel[1], seen}, fan_in);
  add_parameter("weight", weight);
  if (options.bias) {
    bias = draw_uniform({out_channels}, fan_in);
    add_parameter("bias", bias);
  }
}

Tensor Conv2d::forward(const Tensor& x) { return conv2d(x, weight, bias, options_); }

std::string Conv2d::extra_repr() const {
  const Shape& shape = weight.shape();
  return fmt::format("{}, {}, kernel={}, stride={}{}{}{}{}", shape[3] * options_.groups, shape[0],
                     pair_text({shape[1], shape[2]}), pair_text(options_.stride), padding_text(options_.padding),
                     dilation_text(options_.dilation), groups_text(options_.groups),
                     options_text(options_.activation, bias));
}

Conv1d::Conv1d(std::int64_t in_channels, std::int64_t out_channels, std::int64_t kernel,
               const Conv1dLayerOptions& options)
    : options_{options.stride, options.padding, options.activation, options.groups, options.dilation} {
  check_sizes("Conv1d", {in_channels, out_channels, kernel, options.groups, options.dilation});
  check_groups("Conv1d", in_channels, out_channels, options.groups);
  const std::int64_t seen = in_channels / options.groups, fan_in = seen * kernel;
  weight = draw_uniform({out_channels, kernel, seen}, fan_in);
  add_parameter("weight", weight);
  if (options.bias) {
    bias = draw_uniform({out_channels}, fan_in);
    add_parameter("bias", bias);
  }
}

Tensor Conv1d::forward(const Tensor& x) { return conv1d(x, weight, bias, options_); }

std::string Conv1d::extra_repr() const {
  const Shape& shape = weight.shape();
  return fmt::format("{}, {}, kernel={}, stride={}{}{}{}{}", shape[2] * options_.groups, shape[0], shape[1],
                     options_.stride, padding_text(options_.padding),
                     options_.dilation == 1 ? "" : fmt::format(", dilation={}", options_.dilation),
                     groups_text(options_.groups), options_text(options_.activation, bias));
}

Conv3d::Conv3d(std::int64_t in_channels, std::int64_t out_channels, Size3 kernel, const Conv3dLayerOptions& options)
    : options_{options.stride, options.padding, options.activation, options.groups, options.dilation} {
  check_sizes("Conv3d", {in_channels, out_channels, kernel.depth, kernel.height, kernel.width, options.groups,
                         options.dilation.depth, options.dilation.height, options.dilation.width});
  check_groups("Conv3d", in_channels, out_channels, options.groups);
  const std::int64_t seen = in_channels / options.groups, fan_in = seen * kernel.depth * kernel.height * kernel.width;
  weight = draw_uniform({out_channels, kernel.depth, kernel.height, kernel.width, seen}, fan_in);
  add_parameter("weight", weight);
  if (!options.bias) return;
  bias = draw_uniform({out_channels}, fan_in);
  add_parameter("bias", bias);
}

std::string Conv3d::extra_repr() const {
  const auto text = [](Size3 size) { return Shape{size.depth, size.height, size.width}.text(); };
  const auto unusual = [&](const char* name, Size3 size, Size3 usual) {
    return size == usual ? "" : fmt::format(", {}={}", name, text(size));
  };
  const Shape& shape = weight.shape();
  return fmt::format("{}, {}, kernel={}, stride={}{}{}{}{}", shape[4] * options_.groups, shape[0],
                     text({shape[1], shape[2], shape[3]}), text(options_.stride),
                     unusual("padding", options_.padding, 0), unusual("dilation", options_.dilation, 1),
                     groups_text(options_.groups), options_text(options_.activation, bias));
}

Linear::Linear(std::int64_t in_features, std::int64_t out_features, const LinearLayerOptions& options)
    : activation_(options.activation) {
  check_sizes("Linear", {in_features, out_features});
  weight = draw_uniform({out_features, in_features}, in_features);
  add_parameter("weight", weight);
  if (options.bias) {
    bias = draw_uniform({out_features}, in_features);
    add_parameter("bias", bias);
  }
}

Linear::~Linear() = default;

void Linear::set_low_rank(std::unique_ptr<LowRank> low_rank) {
  if (low_rank_) remove(kLoraA), remove(kLoraB);
  low_rank_ = std::move(low_rank);
  if (low_rank_) add(kLoraA, low_rank_->a), add(kLoraB, low_rank_->b);
}

Tensor Linear::forward(const Tensor& x) {
  if (!low_rank_) return linear(x, weight, bias, activation_);
  return activate(linear(x, weight, bias) + low_rank_->product(x, is_training()), activation_);
}

std::string Linear::extra_repr() const {
  return fmt::format("{}, {}{}", weight.shape()[1], weight.shape()[0], options_text(activation_, bias));
}

std::string MaxPool2d::extra_repr() const {
  const Size2 stride = {options_.stride[0] == 0 ? window_[0] : options_.stride[0],
                        options_.stride[1] == 0 ? window_[1] : options_.stride[1]};
  return fmt::format("{}, stride={}{}", pair_text(window_), pair_text(stride), padding_text(options_.padding));
}

std::string LocalResponseNorm::extra_repr() const {
  return fmt::format("radius={}, bias={}, alpha={}, beta={}", options_.radius, options_.bias, options_.alpha,
                     options_.beta);
}

void Sequential::append_module(std::unique_ptr<Module> layer) {
  if (layer == nullptr) throw InvalidArgument("Sequential: module {} of the list is null", modules_.size());
  add(std::to_string(modules_.size()), *layer);
  modules_.push_back(std::move(layer));
}

Tensors Sequential::forward_all(const Tensors& inputs) {
  Tensors values = inputs;
  for (const auto& module : modules_) values = (*module)(values);
  return values;
}

}  // namespace lockstep::nn
