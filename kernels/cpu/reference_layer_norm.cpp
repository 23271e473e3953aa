// Layer norm and RMS norm: h = (x - mean) * rstd, y = h * weight + bias. Backward, with g = dy * weight and means over
// the row: dx = rstd * (g - mean(g) - h * mean(g * h)), for RMS norm without mean(g); dweight = column sums of dy * h,
// dbias = column sums of dy.
#include <cmath>

#include "kernels/cpu/reference.h"

namespace lockstep::reference {

namespace {

double mean_of(const float* row, Index count) {
  double sum = 0;
  for (Index c = 0; c < count; ++c) sum += row[c];
  return sum / static_cast<double>(count);
}

double mean_of_squares(const float* row, double mean, Index count) {
  double sum = 0;
  for (Index c = 0; c < count; ++c) sum += (row[c] - mean) * (row[c] - mean);
  return sum / static_cast<double>(count);
}

void layer_norm(In in, In weight, In bias, float epsilon, Out out, Out means, Out rstds, Stream&) {
  const Index rows = in.shape[0], channels = in.shape[1];
  for (Index n = 0; n < rows && channels > 0; ++n) {
    const float* const x = in.floats() + n * channels;
    const double mean = means ? mean_of(x, channels) : 0,
                 rstd = 1 / std::sqrt(mean_of_squares(x, mean, channels) + epsilon);
    for (Index c = 0; c < channels; ++c)
      out.floats()[n * channels + c] =
          static_cast<float>((x[c] - mean) * rstd * (weight ? weight.floats()[c] : 1) + (bias ? bias.floats()[c] : 0));
    if (means) means.floats()[n] = static_cast<float>(mean);
    rstds.floats()[n] = static_cast<float>(rstd);
  }
}

struct NormRow {
  const float *x, *y_grad, *weight;
  double mean, rstd;

  double normal(Index c) const { return (x[c] - mean) * rstd; }
  double gradient(Index c) const { return static_cast<double>(y_grad[c]) * (weight != nullptr ? weight[c] : 1); }
};

void layer_norm_backward(In in, In weight, In means, In rstds, In out_grad, Out x_grad, Out weight_grad, Out bias_grad,
                         Stream&) {
  const Index rows = in.shape[0], channels = in.shape[1];
  const auto row_of = [&](Index n) {
    return NormRow{in.floats() + n * channels, out_grad.floats() + n * channels, weight.floats(),
                   means ? means.floats()[n] : 0.0, rstds.floats()[n]};
  };
  for (Index n = 0; n < rows && x_grad; ++n) {
    const NormRow row = row_of(n);
    double sum = 0, sum_of_products = 0;
    for (Index c = 0; c < channels; ++c) sum += row.gradient(c), sum_of_products += row.gradient(c) * row.normal(c);
    const double mean = means ? sum / static_cast<double>(channels) : 0,
                 mean_product = sum_of_products / static_cast<double>(channels);
    for (Index c = 0; c < channels; ++c)
      store(x_grad.floats()[n * channels + c], row.rstd * (row.gradient(c) - mean - row.normal(c) * mean_product),
            x_grad.accumulate);
  }
  for (Index c = 0; c < channels; ++c) {
    double sum = 0, sum_of_products = 0;
    for (Index n = 0; n < rows; ++n) {
      const NormRow row = row_of(n);
      sum += row.y_grad[c], sum_of_products += row.y_grad[c] * row.normal(c);
    }
    if (weight_grad) store(weight_grad.floats()[c], sum_of_products, weight_grad.accumulate);
    if (bias_grad) store(bias_grad.floats()[c], sum, bias_grad.accumulate);
  }
}

}  // namespace

void use_layer_norm(KernelTable& table) {
  table.layer_norm = any_float<layer_norm>;
  table.layer_norm_backward = any_float<layer_norm_backward>;
}

}  // namespace lockstep::reference
