// Operators in float64, from which rounding errors are measured.
#pragma once

#include <cmath>
#include <vector>

#include "kernels/cases/values.h"
#include "lockstep/core/operator_shapes.h"

namespace lockstep::testing {

using Doubles = std::vector<double>;

// Calls visit(element of x, of the weight, of y) for each product of a convolution with one group.
template <typename Visit> void for_each_product(const Conv2dShape& s, const Visit& visit) {
  for (Index pixel = 0; pixel < s.batch * s.out_height * s.out_width; ++pixel)
    for (Index tap = 0; tap < s.kernel_height * s.kernel_width; ++tap) {
      const Index n = pixel / (s.out_height * s.out_width), of_image = pixel % (s.out_height * s.out_width),
                  row = of_image / s.out_width * s.stride_height - s.pad_top + tap / s.kernel_width,
                  column = of_image % s.out_width * s.stride_width - s.pad_left + tap % s.kernel_width;
      if (row < 0 || row >= s.in_height || column < 0 || column >= s.in_width) continue;
      const Index x = ((n * s.in_height + row) * s.in_width + column) * s.in_channels;
      for (Index o = 0; o < s.out_channels; ++o)
        for (Index c = 0; c < s.in_channels; ++c)
          visit(x + c, (o * s.kernel_height * s.kernel_width + tap) * s.in_channels + c, pixel * s.out_channels + o);
    }
}

struct ConvolutionIn64 {
  Doubles y, x_grad, weight_grad;

  ConvolutionIn64(const Conv2dShape& s, const Floats& x, const Floats& weight, const Floats& y_grad)
      : y(y_grad.size()), x_grad(x.size()), weight_grad(weight.size()) {
    for_each_product(s, [&](Index of_x, Index of_weight, Index of_y) {
      y[of_y] += double{x[of_x]} * weight[of_weight];
      x_grad[of_x] += double{y_grad[of_y]} * weight[of_weight];
      weight_grad[of_weight] += double{y_grad[of_y]} * x[of_x];
    });
  }
};

// One head: q, k, v and the gradient of y are (count, width).
struct AttentionIn64 {
  Doubles y, q_grad, k_grad, v_grad;

  AttentionIn64(Index count, Index width, double scale, bool causal, const Floats& q, const Floats& k, const Floats& v,
                const Floats& y_grad)
      : y(q.size()), q_grad(q.size()), k_grad(q.size()), v_grad(q.size()) {
    Doubles weights(static_cast<std::size_t>(count)), slopes(weights.size());
    for (Index t = 0; t < count; ++t) {
      const Index keys = causal ? t + 1 : count;
      double sum = 0, mean_slope = 0;
      for (Index key = 0; key < keys; ++key) {
        double score = 0;
        for (Index d = 0; d < width; ++d) score += double{q[t * width + d]} * k[key * width + d];
        sum += weights[key] = std::exp(score * scale);
      }
      for (Index key = 0; key < keys; ++key) {
        weights[key] /= sum, slopes[key] = 0;
        for (Index d = 0; d < width; ++d) {
          y[t * width + d] += weights[key] * v[key * width + d];
          v_grad[key * width + d] += weights[key] * y_grad[t * width + d];
          slopes[key] += double{y_grad[t * width + d]} * v[key * width + d];
        }
        mean_slope += weights[key] * slopes[key];
      }
      for (Index key = 0; key < keys; ++key) {
        const double slope = weights[key] * (slopes[key] - mean_slope) * scale;
        for (Index d = 0; d < width; ++d) {
          q_grad[t * width + d] += slope * k[key * width + d];
          k_grad[key * width + d] += slope * q[t * width + d];
        }
      }
    }
  }
};

}  // namespace lockstep::testing
