// Chooses who computes a convolution. The first candidate that suits the shape does; the last one suits all.
#include <algorithm>

#include "kernels/cpu/conv/depthwise.h"
#include "kernels/cpu/conv/grouped_conv.h"
#include "kernels/cpu/conv/narrow_conv.h"
#include "kernels/cpu/conv/patch_products.h"
#include "kernels/cpu/conv/winograd/winograd.h"
#include "kernels/cpu/conv/winograd/winograd_narrow.h"
#include "kernels/cpu/cpu_table.h"
#include "kernels/cpu/math/in_parts.h"
#include "lockstep/core/cpu_dispatch.h"
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
  void (*compute)(const Conv2dShape& shape, In x, In weight, In bias, bool relu, Out y);
};
struct DataCandidate {
  Suits suits;
  void (*compute)(const Conv2dShape& shape, In y_grad, In weight, Out x_grad);
};
struct WeightsCandidate {
  Suits suits;
  void (*compute)(const Conv2dShape& shape, In x, In y_grad, Out weight_grad, Out bias_grad);
};

bool suits_all(const Conv2dShape&) { return true; }

// For candidates that have no dilation.
template <Suits suits> bool undilated(const Conv2dShape& shape) { return !shape.is_dilated() && suits(shape); }

// Candidates that take pointers.
template <auto kernel> void forward(const Conv2dShape& shape, In x, In weight, In bias, bool relu, Out y) {
  kernel(shape, x.floats(), weight.floats(), bias.floats(), relu, y.floats());
}
template <auto kernel> void backward_data(const Conv2dShape& shape, In y_grad, In weight, Out x_grad) {
  kernel(shape, y_grad.floats(), weight.floats(), x_grad.floats(), x_grad.accumulate);
}
template <auto kernel>
void backward_weights_and_bias(const Conv2dShape& shape, In x, In y_grad, Out weight_grad, Out bias_grad) {
  kernel(shape, x.floats(), y_grad.floats(), weight_grad, bias_grad);
}
// For those that compute no gradient of the bias.
template <auto kernel>
void backward_weights(const Conv2dShape& shape, In x, In y_grad, Out weight_grad, Out bias_grad) {
  kernel(shape, x.floats(), y_grad.floats(), weight_grad.floats(), weight_grad.accumulate);
  if (bias_grad) cpu_device().kernels().bias_backward(y_grad, bias_grad, cpu_device().default_stream());
}

constexpr ForwardCandidate kForward[] = {
    {undilated<winograd::suits>, forward<winograd::conv2d>},
    {undilated<winograd_narrow::suits>, forward<winograd_narrow::conv2d>},
    {undilated<depthwise::suits>, forward<depthwise::conv2d>},
    {undilated<grouped_conv::suits>, forward<grouped_conv::conv2d>},
#if LOCKSTEP_WITH_ONEDNN
    {suits_all, onednn::conv2d},
#endif
    {suits_all, forward<patch_products::conv2d>},
};
constexpr DataCandidate kBackwardData[] = {
    {undilated<winograd::suits>, backward_data<winograd::conv2d_backward_data>},
    {undilated<depthwise::suits>, backward_data<depthwise::conv2d_backward_data>},
    {undilated<grouped_conv::suits>, backward_data<grouped_conv::conv2d_backward_data>},
#if LOCKSTEP_WITH_ONEDNN
    {suits_all, onednn::conv2d_backward_data},
#endif
    {suits_all, backward_data<patch_products::conv2d_backward_data>},
};
constexpr WeightsCandidate kBackwardWeights[] = {
    {undilated<winograd_narrow::suits>, backward_weights_and_bias<winograd_narrow::conv2d_backward_weights>},
    {undilated<narrow_conv::suits>, backward_weights_and_bias<narrow_conv::conv2d_backward_weights>},
    {undilated<winograd::suits>, backward_weights<winograd::conv2d_backward_weights>},
    {undilated<depthwise::suits>, backward_weights<depthwise::conv2d_backward_weights>},
    {undilated<grouped_conv::suits>, backward_weights<grouped_conv::conv2d_backward_weights>},
#if LOCKSTEP_WITH_ONEDNN
    {suits_all, onednn::conv2d_backward_weights},
#endif
    {suits_all, backward_weights<patch_products::conv2d_backward_weights>},
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

// -- float32

void floats_forward(const Conv2dShape& shape, In x, In weight, In bias, bool relu, Out y, Stream& stream) {
  if (empty(shape)) return reference_kernels().conv2d(shape, x, weight, bias, relu, y, stream);
  candidate_for(shape, kForward).compute(shape, x, weight, bias, relu, y);
}

void floats_backward_data(const Conv2dShape& shape, In y_grad, In weight, Out x_grad, Stream& stream) {
  if (empty(shape)) return reference_kernels().conv2d_backward_data(shape, y_grad, weight, x_grad, stream);
  candidate_for(shape, kBackwardData).compute(shape, y_grad, weight, x_grad);
}

void floats_backward_weights(const Conv2dShape& shape, In x, In y_grad, Out weight_grad, Out bias_grad,
                             Stream& stream) {
  if (empty(shape))
    return reference_kernels().conv2d_backward_weights(shape, x, y_grad, weight_grad, bias_grad, stream);
  candidate_for(shape, kBackwardWeights).compute(shape, x, y_grad, weight_grad, bias_grad);
}

// -- 16-bit floats: multiplied directly if the processor can, else widened a few images at a time, which are enough for
// all threads

// The elements of a part are few, so that they stay in the caches, unless there are more weights: each part transforms
// those.
std::int64_t part_elements(const Conv2dShape& s) {
  constexpr std::int64_t kFewest = std::int64_t{1} << 18U, kImagesOfWeights = 8;
  return std::max(kFewest, kImagesOfWeights * s.out_channels * s.kernel_height * s.kernel_width * s.group_channels());
}

#if LOCKSTEP_WITH_ONEDNN
// Winograd saves more multiplications than AVX-512 gains with bfloat16. AMX, which multiplies it 16 times as fast as
// float32, gains more; there only shapes that fill its tiles are multiplied directly.
bool suits_bfloat16(const Conv2dShape& s) {
  if (s.is_dilated()) return false;
  if (cpu_isa() < Isa::kAmx) return !winograd::suits(s);
  return s.groups == 1 && s.in_channels % 16 == 0 && s.out_channels % 16 == 0;
}

bool multiplies_directly(In x, In other, const Conv2dShape& shape) {
  return x.dtype == DType::kBFloat16 && other.dtype == DType::kBFloat16 && !empty(shape) &&
         onednn::multiplies_bfloat16() && suits_bfloat16(shape);
}

// oneDNN 2.6 computes wrong gradients of the inputs of 1x1 convolutions with an odd number of filters.
bool has_wrong_data_gradient(const Conv2dShape& s) {
  return s.kernel_height == 1 && s.kernel_width == 1 && s.group_filters() % 2 != 0;
}

// oneDNN 2.6 reads scratch memory that it has not written if a column of the kernel sees only padding.
bool has_wrong_weight_gradient(const Conv2dShape& s) {
  for (std::int64_t column = 0; column < s.kernel_width; ++column) {
    bool is_seen = false;
    for (std::int64_t out = 0; out < s.out_width && !is_seen; ++out) {
      const std::int64_t at = out * s.stride_width - s.pad_left + column;
      is_seen = at >= 0 && at < s.in_width;
    }
    if (!is_seen) return true;
  }
  return false;
}
#endif

void conv2d(const Conv2dShape& shape, In x, In weight, In bias, bool relu, Out y, Stream& stream) {
  if (!is_half(x.dtype)) return floats_forward(shape, x, weight, bias, relu, y, stream);
#if LOCKSTEP_WITH_ONEDNN
  if (multiplies_directly(x, weight, shape) && (!bias || bias.dtype == x.dtype))
    return onednn::conv2d(shape, x, weight, bias, relu, y);
#endif
  run_in_parts(floats_forward,
               {Cut::kWhole, Cut::kFirst, Cut::kWhole, Cut::kWhole, Cut::kWhole, Cut::kFirst, Cut::kWhole},
               part_elements(shape), shape, x, weight, bias, relu, y, stream);
}

void conv2d_backward_data(const Conv2dShape& shape, In y_grad, In weight, Out x_grad, Stream& stream) {
  if (!is_half(y_grad.dtype)) return floats_backward_data(shape, y_grad, weight, x_grad, stream);
#if LOCKSTEP_WITH_ONEDNN
  if (multiplies_directly(y_grad, weight, shape) && !has_wrong_data_gradient(shape))
    return onednn::conv2d_backward_data(shape, y_grad, weight, x_grad);
#endif
  run_in_parts(floats_backward_data, {Cut::kWhole, Cut::kFirst, Cut::kWhole, Cut::kFirst, Cut::kWhole},
               part_elements(shape), shape, y_grad, weight, x_grad, stream);
}

void conv2d_backward_weights(const Conv2dShape& shape, In x, In y_grad, Out weight_grad, Out bias_grad,
                             Stream& stream) {
  if (!is_half(x.dtype)) return floats_backward_weights(shape, x, y_grad, weight_grad, bias_grad, stream);
#if LOCKSTEP_WITH_ONEDNN
  if (multiplies_directly(x, y_grad, shape) && !has_wrong_weight_gradient(shape))
    return onednn::conv2d_backward_weights(shape, x, y_grad, weight_grad, bias_grad);
#endif
  run_in_parts(floats_backward_weights, {Cut::kWhole, Cut::kFirst, Cut::kFirst, Cut::kSum, Cut::kSum, Cut::kWhole},
               part_elements(shape), shape, x, y_grad, weight_grad, bias_grad, stream);
}

}  // namespace

}  // namespace convolutions

void use_convolutions(KernelTable& table) {
  table.conv2d = convolutions::conv2d;
  table.conv2d_backward_data = convolutions::conv2d_backward_data;
  table.conv2d_backward_weights = convolutions::conv2d_backward_weights;
}

}  // namespace lockstep
