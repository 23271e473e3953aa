// Group norm: h = (x - mean) * rstd with the statistics of the sample's group, y = h * weight + bias. Backward, with g
// = dy * weight and means over the group: dx = rstd * (g - mean(g) - h * mean(g * h)); dweight = sums over samples and
// pixels of dy * h, dbias = sums of dy.
#include <cmath>
#include <vector>

#include "kernels/cpu/reference.h"

namespace lockstep::reference {

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

}  // namespace lockstep::reference
