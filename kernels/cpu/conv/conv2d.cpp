// Chooses who computes a convolution. The first candidate that suits the shape does; the last one suits all.
#include "kernels/cpu/conv/depthwise.h"
#include "kernels/cpu/conv/grouped_conv.h"
#include "kernels/cpu/conv/narrow_conv.h"
#include "kernels/cpu/conv/patch_products.h"
#include "kernels/cpu/conv/winograd/winograd.h"
#include "kernels/cpu/conv/winograd/winograd_narrow.h"
#include "kernels/cpu/cpu_table.h"
#include "kernels/cpu/math/any_float.h"
#include "lockstep/core/kernels.h"
#if LOCKSTEP_WITH_ONEDNN
#include "kernels/onednn/onednn_kernels.h"
#endif

namespace lockstep {

namespace convolutions {

namespace {

using Suits = bool (*)(const Conv2dShape& shape);

struct ForwardCandidate {
  Suits suits;
  void (*compute)(const Conv2dShape& shape, const float* x, const float* weight, const float* bias, bool relu,
                  float* y);
};
struct DataCandidate {
  Suits suits;
  void (*compute)(const Conv2dShape& shape, const float* y_grad, const float* weight, float* x_grad, bool accumulate);
};
// One of the two functions is null; the first one leaves the gradient of the bias to the kernel of bias gradients.
struct WeightsCandidate {
  Suits suits;
  void (*compute)(const Conv2dShape& shape, const float* x, const float* y_grad, float* weight_grad, bool accumulate);
  void (*compute_with_bias)(const Conv2dShape& shape, const float* x, const float* y_grad, Out weight_grad,
                            Out bias_grad);
};

bool suits_all(const Conv2dShape&) { return true; }

constexpr ForwardCandidate kForward[] = {
    {winograd::suits, winograd::conv2d},   {winograd_narrow::suits, winograd_narrow::conv2d},
    {depthwise::suits, depthwise::conv2d}, {grouped_conv::suits, grouped_conv::conv2d},
#if LOCKSTEP_WITH_ONEDNN
    {suits_all, onednn::conv2d},
#endif
    {suits_all, patch_products::conv2d},
};
constexpr DataCandidate kBackwardData[] = {
    {winograd::suits, winograd::conv2d_backward_data},
    {depthwise::suits, depthwise::conv2d_backward_data},
    {grouped_conv::suits, grouped_conv::conv2d_backward_data},
#if LOCKSTEP_WITH_ONEDNN
    {suits_all, onednn::conv2d_backward_data},
#endif
    {suits_all, patch_products::conv2d_backward_data},
};
constexpr WeightsCandidate kBackwardWeights[] = {
    {winograd_narrow::suits, nullptr, winograd_narrow::conv2d_backward_weights},
    {narrow_conv::suits, nullptr, narrow_conv::conv2d_backward_weights},
    {winograd::suits, winograd::conv2d_backward_weights, nullptr},
    {depthwise::suits, depthwise::conv2d_backward_weights, nullptr},
    {grouped_conv::suits, grouped_conv::conv2d_backward_weights, nullptr},
#if LOCKSTEP_WITH_ONEDNN
    {suits_all, nullptr, onednn::conv2d_backward_weights},
#endif
    {suits_all, patch_products::conv2d_backward_weights, nullptr},
};

template <typename Candidates> const auto& candidate_for(const Conv2dShape& shape, const Candidates& candidates) {
  const auto* candidate = candidates;
  while (!candidate->suits(shape)) ++candidate;
  return *candidate;
}

bool empty(const Conv2dShape& s) {
  return s.batch * s.in_height * s.in_width * s.in_channels == 0 ||
         s.batch * s.out_height * s.out_width * s.out_channels == 0;
}

void conv2d(const Conv2dShape& shape, In x, In weight, In bias, bool relu, Out y, Stream& stream) {
  if (empty(shape)) return reference_kernels().conv2d(shape, x, weight, bias, relu, y, stream);
  candidate_for(shape, kForward).compute(shape, x.floats(), weight.floats(), bias.floats(), relu, y.floats());
}

void conv2d_backward_data(const Conv2dShape& shape, In y_grad, In weight, Out x_grad, Stream& stream) {
  if (empty(shape)) return reference_kernels().conv2d_backward_data(shape, y_grad, weight, x_grad, stream);
  candidate_for(shape, kBackwardData)
      .compute(shape, y_grad.floats(), weight.floats(), x_grad.floats(), x_grad.accumulate);
}

void conv2d_backward_weights(const Conv2dShape& shape, In x, In y_grad, Out weight_grad, Out bias_grad,
                             Stream& stream) {
  if (empty(shape))
    return reference_kernels().conv2d_backward_weights(shape, x, y_grad, weight_grad, bias_grad, stream);
  const WeightsCandidate& candidate = candidate_for(shape, kBackwardWeights);
  if (candidate.compute_with_bias != nullptr)
    return candidate.compute_with_bias(shape, x.floats(), y_grad.floats(), weight_grad, bias_grad);
  candidate.compute(shape, x.floats(), y_grad.floats(), weight_grad.floats(), weight_grad.accumulate);
  if (bias_grad) cpu_device().kernels().bias_backward(y_grad, bias_grad, stream);
}

}  // namespace

}  // namespace convolutions

void use_convolutions(KernelTable& table) {
  table.conv2d = any_float<convolutions::conv2d>;
  table.conv2d_backward_data = any_float<convolutions::conv2d_backward_data>;
  table.conv2d_backward_weights = any_float<convolutions::conv2d_backward_weights>;
}

}  // namespace lockstep
