// Layer norm and RMS norm: each row is read from memory once; further passes find it in the first-level cache.
// Gradients of weight and bias are sums over blocks of rows, which are added in their order.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/loops/fast.h"
#include "kernels/cpu/math/lanes.h"
#include "lockstep/core/cpu_dispatch.h"

namespace lockstep::fast {

namespace {

// `means` null: RMS norm.
LOCKSTEP_CPU_DISPATCH(void, norm_loop,
                      (const float* x, const float* weight, const float* bias, float epsilon, Index rows,
                       Index channels, float* y, float* means, float* rstds),
                      (x, weight, bias, epsilon, rows, channels, y, means, rstds), {
                        const float share = 1.0F / static_cast<float>(channels);
                        const Index whole = channels - channels % kLanes;
                        for (Index n = 0; n < rows; ++n, x += channels, y += channels) {
                          float mean = 0;
                          Lanes part;
                          if (means != nullptr) {
                            Lanes sums{};
                            for (Index c = 0; c < whole; c += kLanes) {
                              load(x + c, part);
                              sums += part;
                            }
                            mean = sum_of(sums);
                            for (Index c = whole; c < channels; ++c) mean += x[c];
                            mean *= share;
                            means[n] = mean;
                          }
                          Lanes squares{};
                          for (Index c = 0; c < whole; c += kLanes) {
                            load(x + c, part);
                            part -= mean;
                            squares += part * part;
                          }
                          float variance = sum_of(squares);
                          for (Index c = whole; c < channels; ++c) variance += (x[c] - mean) * (x[c] - mean);
                          const float rstd = 1.0F / std::sqrt(variance * share + epsilon);
                          rstds[n] = rstd;
                          LOCKSTEP_INDEPENDENT_ITERATIONS
                          for (Index c = 0; c < channels; ++c) y[c] = (x[c] - mean) * rstd * weight[c] + bias[c];
                        }
                      })

// For one row: sums over g = dy * weight and g * h, h = (x - mean) * rstd. The row's contribution is added to both
// parameters' gradients.
struct RowSums {
  float gradient, product;
};
LOCKSTEP_CPU_DISPATCH(RowSums, layer_gradient_sums,
                      (const float* x, const float* y_grad, const float* weight, float mean, float rstd, Index channels,
                       float* weight_grad, float* bias_grad),
                      (x, y_grad, weight, mean, rstd, channels, weight_grad, bias_grad), {
                        const Index whole = channels - channels % kLanes;
                        Lanes gradients{};
                        Lanes products{};
                        for (Index c = 0; c < whole; c += kLanes) {
                          Lanes normal, grad, part, sum;
                          load(x + c, normal);
                          normal = (normal - mean) * rstd;
                          load(y_grad + c, grad);
                          const Lanes product = grad * normal;
                          load(weight_grad + c, sum);
                          sum += product;
                          save(sum, weight_grad + c);
                          load(bias_grad + c, sum);
                          sum += grad;
                          save(sum, bias_grad + c);
                          load(weight + c, part);
                          gradients += grad * part;
                          products += product * part;
                        }
                        RowSums sums{sum_of(gradients), sum_of(products)};
                        for (Index c = whole; c < channels; ++c) {
                          const float product = y_grad[c] * ((x[c] - mean) * rstd);
                          weight_grad[c] += product;
                          bias_grad[c] += y_grad[c];
                          sums.gradient += y_grad[c] * weight[c];
                          sums.product += product * weight[c];
                        }
                        return sums;
                      })

LOCKSTEP_CPU_DISPATCH(void, norm_gradient_loop,
                      (const float* x, const float* y_grad, const float* weight, float mean, float rstd,
                       float mean_gradient, float mean_product, Index channels, bool accumulate, float* x_grad),
                      (x, y_grad, weight, mean, rstd, mean_gradient, mean_product, channels, accumulate, x_grad), {
                        if (accumulate) {
                          LOCKSTEP_INDEPENDENT_ITERATIONS
                          for (Index c = 0; c < channels; ++c)
                            x_grad[c] +=
                                rstd * (y_grad[c] * weight[c] - mean_gradient - (x[c] - mean) * rstd * mean_product);
                        } else {
                          LOCKSTEP_INDEPENDENT_ITERATIONS
                          for (Index c = 0; c < channels; ++c)
                            x_grad[c] =
                                rstd * (y_grad[c] * weight[c] - mean_gradient - (x[c] - mean) * rstd * mean_product);
                        }
                      })

LOCKSTEP_CPU_DISPATCH(void, add_to, (const float* in, Index count, float* sum), (in, count, sum), {
  LOCKSTEP_INDEPENDENT_ITERATIONS
  for (Index c = 0; c < count; ++c) sum[c] += in[c];
})

// Temporary rows of `channels` floats.
class RowMemory {
 public:
  RowMemory(Index rows, Index channels)
      : memory_(cpu_device().allocate(static_cast<std::size_t>(rows * channels) * sizeof(float))),
        channels_(channels) {}
  float* row(Index n) const { return reinterpret_cast<float*>(memory_.data()) + n * channels_; }
  const float* filled(Index n, float value) const {
    std::fill_n(row(n), channels_, value);
    return row(n);
  }

 private:
  Buffer memory_;
  Index channels_;
};

void layer_norm(In x, In weight, In bias, float epsilon, Out y, Out mean, Out rstd, Stream&) {
  const Index rows = x.shape[0], channels = x.shape[1];
  if (channels == 0) return;
  const RowMemory constants(2, channels);
  norm_loop(x.floats(), weight ? weight.floats() : constants.filled(0, 1),
            bias ? bias.floats() : constants.filled(1, 0), epsilon, rows, channels, y.floats(), mean.floats(),
            rstd.floats());
}

void layer_norm_backward(In x, In weight, In means, In rstds, In y_grad, Out x_grad, Out weight_grad, Out bias_grad,
                         Stream&) {
  constexpr Index kBlock = 64;
  const Index rows = x.shape[0], channels = x.shape[1];
  if (channels == 0) return;
  const RowMemory memory(3, channels);
  const float* const weights = weight ? weight.floats() : memory.filled(2, 1);
  for (const OutputView* total : {&weight_grad, &bias_grad})
    if (*total && !total->accumulate) std::fill_n(total->floats(), channels, 0.0F);
  for (Index block = 0; block < rows; block += kBlock) {
    memory.filled(0, 0), memory.filled(1, 0);
    for (Index n = block; n < std::min(rows, block + kBlock); ++n) {
      const float *row = x.floats() + n * channels, *grad = y_grad.floats() + n * channels;
      const float mean = means ? means.floats()[n] : 0, rstd = rstds.floats()[n],
                  share = 1.0F / static_cast<float>(channels);
      const RowSums sums = layer_gradient_sums(row, grad, weights, mean, rstd, channels, memory.row(0), memory.row(1));
      if (x_grad)
        norm_gradient_loop(row, grad, weights, mean, rstd, means ? sums.gradient * share : 0, sums.product * share,
                           channels, x_grad.accumulate, x_grad.floats() + n * channels);
    }
    if (weight_grad) add_to(memory.row(0), channels, weight_grad.floats());
    if (bias_grad) add_to(memory.row(1), channels, bias_grad.floats());
  }
}

}  // namespace

void use_layer_norm(KernelTable& table) {
  table.layer_norm = any_float<layer_norm>;
  table.layer_norm_backward = any_float<layer_norm_backward>;
}

}  // namespace lockstep::fast
