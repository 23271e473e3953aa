// Softmax of rows, and its logarithm.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/reference.h"

namespace lockstep::reference {

namespace {

void softmax(In in, bool log, Out out, Stream&) {
  const Index rows = in.shape[0], channels = in.shape[1];
  for (Index n = 0; n < rows && channels > 0; ++n) {
    const float* const x = in.floats() + n * channels;
    const double largest = *std::max_element(x, x + channels);
    double sum = 0;
    for (Index c = 0; c < channels; ++c) sum += std::exp(x[c] - largest);
    for (Index c = 0; c < channels; ++c)
      out.floats()[n * channels + c] =
          static_cast<float>(log ? x[c] - largest - std::log(sum) : std::exp(x[c] - largest) / sum);
  }
}

void softmax_backward(In out, In out_grad, bool log, Out x_grad, Stream&) {
  const Index rows = out.shape[0], channels = out.shape[1];
  for (Index n = 0; n < rows; ++n) {
    const float *const y = out.floats() + n * channels, *const grad = out_grad.floats() + n * channels;
    double sum = 0;
    for (Index c = 0; c < channels; ++c) sum += log ? grad[c] : static_cast<double>(grad[c]) * y[c];
    for (Index c = 0; c < channels; ++c)
      store(x_grad.floats()[n * channels + c],
            log ? grad[c] - std::exp(static_cast<double>(y[c])) * sum : y[c] * (grad[c] - sum), x_grad.accumulate);
  }
}

}  // namespace

void use_softmax(KernelTable& table) {
  table.softmax = any_float<softmax>;
  table.softmax_backward = any_float<softmax_backward>;
}

}  // namespace lockstep::reference
