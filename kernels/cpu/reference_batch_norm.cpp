// Batch normalisation. With g = dy where y was not clamped, xhat = (x - mean) * r, r = 1 / sqrt(variance + eps):
// dbias = sum g, dweight = sum g * xhat, dx = weight * r * (g - dbias / rows - xhat * dweight / rows).
#include <cmath>

#include "kernels/cpu/reference.h"

namespace lockstep::reference {

namespace {

void batch_norm_statistics(In x, Out mean, Out variance, Stream&) {
  const Index channels = mean.count(), count = x.count();
  const double rows = static_cast<double>(count) / static_cast<double>(channels);
  const float* const from = x.floats();
  for (Index c = 0; c < channels; ++c) {
    double sum = 0, squares = 0;
    for (Index i = c; i < count; i += channels) sum += from[i];
    const double center = sum / rows;
    for (Index i = c; i < count; i += channels) squares += (from[i] - center) * (from[i] - center);
    mean.floats()[c] = static_cast<float>(center);
    variance.floats()[c] = static_cast<float>(squares / rows);
  }
}

// Values of one channel.
struct Channel {
  double mean, inverse, weight, bias;
  double normalized(float x) const { return (x - mean) * inverse; }
  double result(float x) const { return normalized(x) * weight + bias; }
};

Channel channel_of(const BatchNormParams& params, Index c, In mean, In variance, In weight, In bias) {
  return {mean.floats()[c], 1 / std::sqrt(static_cast<double>(variance.floats()[c]) + params.eps),
          weight ? weight.floats()[c] : 1.0, bias ? bias.floats()[c] : 0.0};
}

void batch_norm(const BatchNormParams& params, In x, In mean, In variance, In weight, In bias, Out y, Stream&) {
  const Index channels = mean.count();
  for (Index c = 0; c < channels; ++c) {
    const Channel channel = channel_of(params, c, mean, variance, weight, bias);
    for (Index i = c; i < x.count(); i += channels) {
      const auto value = static_cast<float>(channel.result(x.floats()[i]));
      y.floats()[i] = params.relu ? clamp_at_zero(value) : value;
    }
  }
}

void batch_norm_backward(const BatchNormParams& params, In x, In y_grad, In mean, In variance, In weight, In bias,
                         Out x_grad, Out weight_grad, Out bias_grad, Stream&) {
  const Index channels = mean.count(), count = x.count();
  const double rows = static_cast<double>(count) / static_cast<double>(channels);
  for (Index c = 0; c < channels; ++c) {
    const Channel channel = channel_of(params, c, mean, variance, weight, bias);
    const auto grad_of = [&](Index i) {
      return params.relu && !(channel.result(x.floats()[i]) > 0) ? 0.0 : y_grad.floats()[i];
    };
    double sum = 0, products = 0;
    for (Index i = c; i < count; i += channels) {
      sum += grad_of(i);
      products += grad_of(i) * channel.normalized(x.floats()[i]);
    }
    if (weight_grad) store(weight_grad.floats()[c], products, weight_grad.accumulate);
    if (bias_grad) store(bias_grad.floats()[c], sum, bias_grad.accumulate);
    if (!x_grad) continue;
    const double mean_grad = params.constant_statistics ? 0 : sum / rows,
                 mean_product = params.constant_statistics ? 0 : products / rows;
    for (Index i = c; i < count; i += channels) {
      const double grad = grad_of(i) - mean_grad - channel.normalized(x.floats()[i]) * mean_product;
      store(x_grad.floats()[i], channel.weight * channel.inverse * grad, x_grad.accumulate);
    }
  }
}

}  // namespace

void use_batch_norm(KernelTable& table) {
  table.batch_norm_statistics = any_float<batch_norm_statistics>;
  table.batch_norm = any_float<batch_norm>;
  table.batch_norm_backward = any_float<batch_norm_backward>;
}

}  // namespace lockstep::reference
