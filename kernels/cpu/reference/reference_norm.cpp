// Normalisation: batch norm, layer norm, group norm, local response normalisation.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/reference/reference.h"

namespace lockstep::reference {

// -- batch norm

// With g = dy where y was not clamped, xhat = (x - mean) * r, r = 1 / sqrt(variance + eps):
// dbias = sum g, dweight = sum g * xhat, dx = weight * r * (g - dbias / rows - xhat * dweight / rows).

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

// -- layer norm, RMS norm

// h = (x - mean) * rstd, y = h * weight + bias. Backward, with g = dy * weight and means over
// the row: dx = rstd * (g - mean(g) - h * mean(g * h)), for RMS norm without mean(g); dweight = column sums of dy * h,
// dbias = column sums of dy.

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

// Not by any_float: the sum is rounded before it is normalised.
void add_layer_norm(In a, In b, In weight, In bias, float epsilon, Out sum, Out out, Out means, Out rstds,
                    Stream& stream) {
  reference_kernels().add(a, b, sum, stream);
  reference_kernels().layer_norm(sum, weight, bias, epsilon, out, means, rstds, stream);
}

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
  table.add_layer_norm = add_layer_norm;
  table.layer_norm_backward = any_float<layer_norm_backward>;
}

// -- group norm

// h = (x - mean) * rstd with the statistics of the sample's group, y = h * weight + bias. Backward, with g
// = dy * weight and means over the group: dx = rstd * (g - mean(g) - h * mean(g * h)); dweight = sums over samples and
// pixels of dy * h, dbias = sums of dy.

namespace {

// Calls visit(index of the element, its channel) for all elements of a sample's group.
template <typename Visit> void for_group(const Shape& shape, Index groups, Index n, Index group, Visit&& visit) {
  const Index channels = shape[2], width = channels / groups;
  for (Index pixel = 0; pixel < shape[1]; ++pixel)
    for (Index c = group * width; c < (group + 1) * width; ++c) visit((n * shape[1] + pixel) * channels + c, c);
}

void group_norm(Index groups, In in, In weight, In bias, float epsilon, Out out, Out means, Out rstds, Stream&) {
  if (in.count() == 0) return;  // no device writes statistics of an empty group
  const float* const x = in.floats();
  const auto count = static_cast<double>(in.shape[1] * (in.shape[2] / groups));
  for (Index n = 0; n < in.shape[0]; ++n)
    for (Index group = 0; group < groups; ++group) {
      double mean = 0, square = 0;
      for_group(in.shape, groups, n, group, [&](Index i, Index) { mean += x[i] / count; });
      for_group(in.shape, groups, n, group, [&](Index i, Index) { square += (x[i] - mean) * (x[i] - mean) / count; });
      const double rstd = 1 / std::sqrt(square + epsilon);
      for_group(in.shape, groups, n, group, [&](Index i, Index c) {
        out.floats()[i] = static_cast<float>((x[i] - mean) * rstd * (weight ? weight.floats()[c] : 1) +
                                             (bias ? bias.floats()[c] : 0));
      });
      means.floats()[n * groups + group] = static_cast<float>(mean);
      rstds.floats()[n * groups + group] = static_cast<float>(rstd);
    }
}

void group_norm_backward(Index groups, In in, In weight, In means, In rstds, In out_grad, Out x_grad, Out weight_grad,
                         Out bias_grad, Stream&) {
  const float *const x = in.floats(), *const y_grad = out_grad.floats();
  const auto count = static_cast<double>(in.shape[1] * (in.shape[2] / groups));
  std::vector<double> weight_sums(static_cast<std::size_t>(in.shape[2])), bias_sums(weight_sums.size());
  for (Index n = 0; n < in.shape[0]; ++n)
    for (Index group = 0; group < groups; ++group) {
      const double mean = means.floats()[n * groups + group], rstd = rstds.floats()[n * groups + group];
      const auto gradient = [&](Index i, Index c) {
        return static_cast<double>(y_grad[i]) * (weight ? weight.floats()[c] : 1);
      };
      double sum = 0, product = 0;
      for_group(in.shape, groups, n, group, [&](Index i, Index c) {
        const double normal = (x[i] - mean) * rstd;
        sum += gradient(i, c) / count, product += gradient(i, c) * normal / count;
        weight_sums[static_cast<std::size_t>(c)] += y_grad[i] * normal;
        bias_sums[static_cast<std::size_t>(c)] += y_grad[i];
      });
      if (x_grad)
        for_group(in.shape, groups, n, group, [&](Index i, Index c) {
          store(x_grad.floats()[i], rstd * (gradient(i, c) - sum - (x[i] - mean) * rstd * product), x_grad.accumulate);
        });
    }
  for (std::size_t c = 0; c < weight_sums.size(); ++c) {
    if (weight_grad) store(weight_grad.floats()[c], weight_sums[c], weight_grad.accumulate);
    if (bias_grad) store(bias_grad.floats()[c], bias_sums[c], bias_grad.accumulate);
  }
}

}  // namespace

void use_group_norm(KernelTable& table) {
  table.group_norm = any_float<group_norm>;
  table.group_norm_backward = any_float<group_norm_backward>;
}

// -- local response normalisation

// s_c = bias + alpha * sum over |j - c| <= radius of x_j^2, y_c = x_c * s_c^-beta.
// Backward: dx_c = dy_c * s_c^-beta - 2 * alpha * beta * x_c * sum over |j - c| <= radius of dy_j * y_j / s_j.

namespace {

// The sum of term(j) over the channels around c.
template <typename Term> double window_sum(const LrnParams& params, Index c, Term&& term) {
  double sum = 0;
  const Index last = std::min(params.channels - 1, c + params.radius);
  for (Index j = std::max<Index>(0, c - params.radius); j <= last; ++j) sum += term(j);
  return sum;
}

void lrn(const LrnParams& params, In in, Out out, Out scales, Stream&) {
  const float* const x = in.floats();
  float *y = out.floats(), *scale = scales.floats();
  for (Index row = 0; row < params.rows; ++row) {
    const Index at = row * params.channels;
    for (Index c = 0; c < params.channels; ++c) {
      const double squares = window_sum(params, c, [&](Index j) { return static_cast<double>(x[at + j]) * x[at + j]; });
      scale[at + c] = static_cast<float>(params.bias + params.alpha * squares);
      y[at + c] = static_cast<float>(x[at + c] *
                                     std::pow(static_cast<double>(scale[at + c]), -static_cast<double>(params.beta)));
    }
  }
}

void lrn_backward(const LrnParams& params, In in, In out, In scales, In out_grad, Out x_grad, Stream&) {
  const float *x = in.floats(), *y = out.floats(), *scale = scales.floats(), *y_grad = out_grad.floats();
  const double factor = 2.0 * params.alpha * params.beta;
  for (Index row = 0; row < params.rows; ++row) {
    const Index at = row * params.channels;
    for (Index c = 0; c < params.channels; ++c) {
      const double own =
          y_grad[at + c] * std::pow(static_cast<double>(scale[at + c]), -static_cast<double>(params.beta));
      const double others = window_sum(
          params, c, [&](Index j) { return static_cast<double>(y_grad[at + j]) * y[at + j] / scale[at + j]; });
      store(x_grad.floats()[at + c], own - factor * x[at + c] * others, x_grad.accumulate);
    }
  }
}

}  // namespace

void use_lrn(KernelTable& table) {
  table.lrn = any_float<lrn>;
  table.lrn_backward = any_float<lrn_backward>;
}

}  // namespace lockstep::reference
