// Local response normalisation: s_c = bias + alpha * sum over |j - c| <= radius of x_j^2, y_c = x_c * s_c^-beta.
// Backward: dx_c = dy_c * s_c^-beta - 2 * alpha * beta * x_c * sum over |j - c| <= radius of dy_j * y_j / s_j.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/reference.h"

namespace lockstep::reference {

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
