#include "lockstep/nn/batch_norm.h"

#include "src/nn/layers/layer_parts.h"
#include "src/nn/module/option_text.h"

namespace lockstep::nn {

BatchNorm::BatchNorm(std::int64_t channels, const BatchNormLayerOptions& options) : options_(options) {
  check_sizes("BatchNorm", {channels});
  if (options.affine) {
    weight = Tensor::full({channels}, 1);
    bias = Tensor::zeros({channels});
    add_parameter("weight", weight);
    add_parameter("bias", bias);
  }
  running_mean = Tensor::zeros({channels});
  running_var = Tensor::full({channels}, 1);
  add_buffer("running_mean", running_mean);
  add_buffer("running_var", running_var);
}

Tensor BatchNorm::forward(const Tensor& x) {
  const bool relu = options_.activation == Activation::kReLU;
  const Tensor y = batch_norm(x, weight, bias, running_mean, running_var,
                              {is_training(), options_.momentum, options_.eps, relu, exchange_});
  return relu ? y : activate(y, options_.activation);
}

std::string BatchNorm::extra_repr() const {
  return fmt::format("{}, momentum={}, eps={}{}{}", running_mean.count(), options_.momentum, options_.eps,
                     options_.affine ? "" : ", affine=false", activation_text(options_.activation));
}

}  // namespace lockstep::nn
