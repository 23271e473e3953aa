// Group norm, with loops over the channels of a pixel. For each sample, sums of channels are computed first and
// combined to sums of groups; then y = x * factor + offset with one factor and one offset per channel.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/loops/fast.h"
#include "kernels/cpu/math/lanes.h"
#include "kernels/cpu/math/prefetch.h"
#include "lockstep/core/cpu_dispatch.h"

namespace lockstep::fast {

namespace {

// sums += the sums of the channels of `pixels` pixels; channel_squares() sums (x - mean)^2.
LOCKSTEP_CPU_DISPATCH(void, channel_sums, (const float* x, Index pixels, Index channels, float* sums),
                      (x, pixels, channels, sums), {
                        Index first = 0;
                        for (; first + kColumn <= channels; first += kColumn) {
                          Lanes totals[kColumnVectors];
                          for (Index v = 0; v < kColumnVectors; ++v) load(sums + first + v * kLanes, totals[v]);
                          for (Index pixel = 0; pixel < pixels; ++pixel) {
                            prefetch_chunk(x + pixel * channels + first, 8 * channels);
                            for (Index v = 0; v < kColumnVectors; ++v) {
                              Lanes value;
                              load(x + pixel * channels + first + v * kLanes, value);
                              totals[v] += value;
                            }
                          }
                          for (Index v = 0; v < kColumnVectors; ++v) save(totals[v], sums + first + v * kLanes);
                        }
                        for (Index pixel = 0; pixel < pixels; ++pixel, x += channels) {
                          LOCKSTEP_INDEPENDENT_ITERATIONS
                          for (Index c = first; c < channels; ++c) sums[c] += x[c];
                        }
                      })

LOCKSTEP_CPU_DISPATCH(void, channel_squares,
                      (const float* x, const float* means, Index pixels, Index channels, float* sums),
                      (x, means, pixels, channels, sums), {
                        Index first = 0;
                        for (; first + kColumn <= channels; first += kColumn) {
                          Lanes totals[kColumnVectors];
                          Lanes centres[kColumnVectors];
                          for (Index v = 0; v < kColumnVectors; ++v) {
                            load(sums + first + v * kLanes, totals[v]);
                            load(means + first + v * kLanes, centres[v]);
                          }
                          for (Index pixel = 0; pixel < pixels; ++pixel)
                            for (Index v = 0; v < kColumnVectors; ++v) {
                              Lanes value;
                              load(x + pixel * channels + first + v * kLanes, value);
                              value -= centres[v];
                              totals[v] += value * value;
                            }
                          for (Index v = 0; v < kColumnVectors; ++v) save(totals[v], sums + first + v * kLanes);
                        }
                        for (Index pixel = 0; pixel < pixels; ++pixel, x += channels) {
                          LOCKSTEP_INDEPENDENT_ITERATIONS
                          for (Index c = first; c < channels; ++c) {
                            const float centred = x[c] - means[c];
                            sums[c] += centred * centred;
                          }
                        }
                      })

LOCKSTEP_CPU_DISPATCH(void, scale_channels,
                      (const float* x, const float* means, const float* factors, const float* offsets, Index pixels,
                       Index channels, float* y),
                      (x, means, factors, offsets, pixels, channels, y), {
                        for (Index pixel = 0; pixel < pixels; ++pixel, x += channels, y += channels)
                          LOCKSTEP_CHUNKED_LOOP(c, channels, prefetch_chunk<true>(y + c),
                                                { y[c] = (x[c] - means[c]) * factors[c] + offsets[c]; })
                      })

// grads += sums of y_grad, products += sums of y_grad * (x - mean).
LOCKSTEP_CPU_DISPATCH(void, channel_gradients,
                      (const float* x, const float* y_grad, const float* means, Index pixels, Index channels,
                       float* grads, float* products),
                      (x, y_grad, means, pixels, channels, grads, products), {
                        for (Index pixel = 0; pixel < pixels; ++pixel, x += channels, y_grad += channels) {
                          LOCKSTEP_INDEPENDENT_ITERATIONS
                          for (Index c = 0; c < channels; ++c) {
                            grads[c] += y_grad[c];
                            products[c] += y_grad[c] * (x[c] - means[c]);
                          }
                        }
                      })

// x_grad = y_grad * factor - offset - (x - mean) * slope.
LOCKSTEP_CPU_DISPATCH(void, group_gradients,
                      (const float* x, const float* y_grad, const float* means, const float* factors,
                       const float* offsets, const float* slopes, Index pixels, Index channels, bool accumulate,
                       float* x_grad),
                      (x, y_grad, means, factors, offsets, slopes, pixels, channels, accumulate, x_grad), {
                        for (Index pixel = 0; pixel < pixels;
                             ++pixel, x += channels, y_grad += channels, x_grad += channels) {
                          if (accumulate) {
                            LOCKSTEP_INDEPENDENT_ITERATIONS
                            for (Index c = 0; c < channels; ++c)
                              x_grad[c] += y_grad[c] * factors[c] - offsets[c] - (x[c] - means[c]) * slopes[c];
                          } else {
                            LOCKSTEP_INDEPENDENT_ITERATIONS
                            for (Index c = 0; c < channels; ++c)
                              x_grad[c] = y_grad[c] * factors[c] - offsets[c] - (x[c] - means[c]) * slopes[c];
                          }
                        }
                      })

constexpr Index kPixelBlock = 64;  // block size of sums of sums: the largest number of terms summed in one float

// Arrays with one float per channel.
class ChannelMemory {
 public:
  ChannelMemory(Index arrays, Index channels)
      : memory_(cpu_device().allocate(static_cast<std::size_t>(arrays * channels) * sizeof(float))),
        channels_(channels) {}
  float* array(Index n) const { return reinterpret_cast<float*>(memory_.data()) + n * channels_; }
  float* zeros(Index n) const {
    std::fill_n(array(n), channels_, 0.0F);
    return array(n);
  }

 private:
  Buffer memory_;
  Index channels_;
};

// totals += the sums that `add` computes over blocks of pixels, in their order.
template <typename Add> void add_blocks(Index pixels, Index channels, float* block, float* totals, Add&& add) {
  for (Index pixel = 0; pixel < pixels; pixel += kPixelBlock) {
    std::fill_n(block, channels, 0.0F);
    add(pixel, std::min(kPixelBlock, pixels - pixel), block);
    channel_sums(block, 1, channels, totals);
  }
}

// Sets every channel to the sum of its group, times `share`.
void spread_over_groups(float* sums, Index channels, Index groups, float share) {
  const Index width = channels / groups;
  for (Index first = 0; first < channels; first += width) {
    float sum = 0;
    for (Index c = first; c < first + width; ++c) sum += sums[c];
    std::fill_n(sums + first, width, sum * share);
  }
}

void group_norm(Index groups, In in, In weight, In bias, float epsilon, Out out, Out means, Out rstds, Stream&) {
  const Index pixels = in.shape[1], channels = in.shape[2], width = channels / groups;
  if (in.count() == 0) return;
  const ChannelMemory memory(4, channels);
  const float share = 1.0F / static_cast<float>(pixels * width);
  for (Index n = 0; n < in.shape[0]; ++n) {
    const float* const x = in.floats() + n * pixels * channels;
    float *const mean = memory.zeros(0), *const square = memory.zeros(1);
    add_blocks(pixels, channels, memory.array(2), mean, [&](Index first, Index count, float* block) {
      channel_sums(x + first * channels, count, channels, block);
    });
    spread_over_groups(mean, channels, groups, share);
    add_blocks(pixels, channels, memory.array(2), square, [&](Index first, Index count, float* block) {
      channel_squares(x + first * channels, mean, count, channels, block);
    });
    spread_over_groups(square, channels, groups, share);
    float *const factors = square, *const offsets = memory.zeros(3);
    for (Index c = 0; c < channels; ++c) {
      const float rstd = 1.0F / std::sqrt(square[c] + epsilon);
      if (c % width == 0)
        means.floats()[n * groups + c / width] = mean[c], rstds.floats()[n * groups + c / width] = rstd;
      factors[c] = weight ? rstd * weight.floats()[c] : rstd;
      if (bias) offsets[c] = bias.floats()[c];
    }
    scale_channels(x, mean, factors, offsets, pixels, channels, out.floats() + n * pixels * channels);
  }
}

// Intermediate results of backward for one sample: each is an array over the channels.
struct SampleSums {
  float *means, *grads, *products;
};

SampleSums sums_of_sample(const ChannelMemory& memory, const float* x, const float* y_grad, const float* group_means,
                          Index pixels, Index channels, Index width) {
  const SampleSums sums{memory.array(0), memory.zeros(1), memory.zeros(2)};
  for (Index c = 0; c < channels; ++c) sums.means[c] = group_means[c / width];
  for (Index pixel = 0; pixel < pixels; pixel += kPixelBlock) {
    float *const grads = memory.zeros(3), *const products = memory.zeros(4);
    channel_gradients(x + pixel * channels, y_grad + pixel * channels, sums.means,
                      std::min(kPixelBlock, pixels - pixel), channels, grads, products);
    channel_sums(grads, 1, channels, sums.grads);
    channel_sums(products, 1, channels, sums.products);
  }
  return sums;
}

void group_norm_backward(Index groups, In in, In weight, In means, In rstds, In out_grad, Out x_grad, Out weight_grad,
                         Out bias_grad, Stream&) {
  const Index pixels = in.shape[1], channels = in.shape[2], width = channels / groups, sample = pixels * channels;
  const ChannelMemory memory(6, channels);
  const float share = 1.0F / static_cast<float>(pixels * width);
  for (const OutputView* total : {&weight_grad, &bias_grad})
    if (*total && !total->accumulate) std::fill_n(total->floats(), channels, 0.0F);
  for (Index n = 0; n < in.shape[0] && sample > 0; ++n) {  // without pixels there is no deviation to divide by
    const float *const x = in.floats() + n * sample, *const y_grad = out_grad.floats() + n * sample;
    const SampleSums sums = sums_of_sample(memory, x, y_grad, means.floats() + n * groups, pixels, channels, width);
    float* const factors = memory.array(3);
    for (Index c = 0; c < channels; ++c) {
      const float rstd = rstds.floats()[n * groups + c / width];
      if (weight_grad) weight_grad.floats()[c] += sums.products[c] * rstd;
      if (bias_grad) bias_grad.floats()[c] += sums.grads[c];
      factors[c] = weight ? rstd * weight.floats()[c] : rstd;
      sums.grads[c] *= factors[c];
      sums.products[c] *= factors[c] * rstd * rstd;
    }
    if (!x_grad) continue;
    spread_over_groups(sums.grads, channels, groups, share);
    spread_over_groups(sums.products, channels, groups, share);
    group_gradients(x, y_grad, sums.means, factors, sums.grads, sums.products, pixels, channels, x_grad.accumulate,
                    x_grad.floats() + n * sample);
  }
}

}  // namespace

void use_group_norm(KernelTable& table) {
  table.group_norm = any_float<group_norm>;
  table.group_norm_backward = any_float<group_norm_backward>;
}

}  // namespace lockstep::fast
