// Batch normalisation, vectorised along the channels; rows with few channels are processed several at a time, so that
// loops are long enough. There is one pass over memory for the statistics (shifted by the first row, so that a large
// mean does not reduce the precision of the variance), one for the result, and two for the gradients. Sums are computed
// in float within a block of rows, and in double over the blocks.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/loops/fast.h"
#include "lockstep/core/cpu_dispatch.h"

namespace lockstep::fast {

namespace {

constexpr Index kWidth = 128;  // approximate number of floats in a loop
constexpr Index kBlock = 64;   // number of such loops that are summed in float

LOCKSTEP_CPU_DISPATCH(void, shifted_sums,
                      (const float* x, const float* shift, Index steps, Index width, float* sums, float* squares),
                      (x, shift, steps, width, sums, squares), {
                        for (Index step = 0; step < steps; ++step, x += width) {
                          LOCKSTEP_INDEPENDENT_ITERATIONS
                          for (Index c = 0; c < width; ++c) {
                            const float value = x[c] - shift[c];
                            sums[c] += value;
                            squares[c] += value * value;
                          }
                        }
                      })

LOCKSTEP_CPU_DISPATCH(void, normalize,
                      (const float* x, const float* mean, const float* factor, const float* bias, Index steps,
                       Index width, bool relu, float* y),
                      (x, mean, factor, bias, steps, width, relu, y), {
                        for (Index step = 0; step < steps; ++step, x += width, y += width) {
                          if (relu) {
                            LOCKSTEP_INDEPENDENT_ITERATIONS
                            for (Index c = 0; c < width; ++c) {
                              const float value = (x[c] - mean[c]) * factor[c] + bias[c];
                              y[c] = value < 0 ? 0 : value;
                            }
                          } else {
                            LOCKSTEP_INDEPENDENT_ITERATIONS
                            for (Index c = 0; c < width; ++c) y[c] = (x[c] - mean[c]) * factor[c] + bias[c];
                          }
                        }
                      })

LOCKSTEP_CPU_DISPATCH(void, gradient_sums,
                      (const float* x, const float* y_grad, const float* mean, const float* factor, const float* bias,
                       Index steps, Index width, bool relu, float* sums, float* products),
                      (x, y_grad, mean, factor, bias, steps, width, relu, sums, products), {
                        for (Index step = 0; step < steps; ++step, x += width, y_grad += width) {
                          LOCKSTEP_INDEPENDENT_ITERATIONS
                          for (Index c = 0; c < width; ++c) {
                            const float centered = x[c] - mean[c];
                            const float grad = y_grad[c];
                            const float passed = (!relu | (centered * factor[c] + bias[c] > 0)) ? grad : 0;
                            sums[c] += passed;
                            products[c] += passed * centered;
                          }
                        }
                      })

// x_grad = factor * (g - mean_grad - (x - mean) * slope)
LOCKSTEP_CPU_DISPATCH(void, gradients,
                      (const float* x, const float* y_grad, const float* mean, const float* factor, const float* bias,
                       const float* mean_grad, const float* slope, Index steps, Index width, bool relu, bool accumulate,
                       float* x_grad),
                      (x, y_grad, mean, factor, bias, mean_grad, slope, steps, width, relu, accumulate, x_grad), {
                        for (Index step = 0; step < steps; ++step, x += width, y_grad += width, x_grad += width) {
                          LOCKSTEP_INDEPENDENT_ITERATIONS
                          for (Index c = 0; c < width; ++c) {
                            const float centered = x[c] - mean[c];
                            const float grad = y_grad[c];
                            const float passed = (!relu | (centered * factor[c] + bias[c] > 0)) ? grad : 0;
                            const float value = factor[c] * (passed - mean_grad[c] - centered * slope[c]);
                            x_grad[c] = accumulate ? x_grad[c] + value : value;
                          }
                        }
                      })

// Rows that are processed together, and float arrays of a loop's width that repeat the channels' values.
class RowsTogether {
 public:
  RowsTogether(Index count, Index channels, Index arrays)
      : channels_(channels),
        rows_(count / channels),
        together_(std::max<Index>(1, std::min(kWidth / channels, rows_))),
        memory_(cpu_device().allocate(static_cast<std::size_t>(arrays * together_ * channels) * sizeof(float))) {}

  Index width() const { return together_ * channels_; }
  Index steps() const { return rows_ / together_; }             // loops of full width
  Index rest() const { return rows_ % together_ * channels_; }  // remaining floats, for one more loop
  float* array(Index index) const { return reinterpret_cast<float*>(memory_.data()) + index * width(); }
  template <typename ValueOf> float* spread(Index index, ValueOf&& value_of) const {
    float* const to = array(index);
    for (Index c = 0; c < channels_; ++c) to[c] = static_cast<float>(value_of(c));
    for (Index c = channels_; c < width(); ++c) to[c] = to[c - channels_];
    return to;
  }
  // Calls loop(first float, steps, width) over all rows, `most` steps at a time.
  template <typename Loop> void over_rows(Index most, Loop&& loop) const {
    for (Index step = 0; step < steps(); step += most) loop(step * width(), std::min(most, steps() - step), width());
    if (rest() > 0) loop(steps() * width(), 1, rest());
  }

 private:
  Index channels_, rows_, together_;
  Buffer memory_;
};

// Two sums per channel: in float within a block, in double over the blocks.
class ChannelSums {
 public:
  ChannelSums(const RowsTogether& lanes, Index channels, Index first_array)
      : lanes_(lanes),
        channels_(channels),
        first_(lanes.array(first_array)),
        second_(lanes.array(first_array + 1)),
        totals_(cpu_device().allocate(static_cast<std::size_t>(2 * channels) * sizeof(double))) {
    std::fill_n(reinterpret_cast<double*>(totals_.data()), 2 * channels, 0.0);
  }
  // loop(first float, steps, width, sums, other sums)
  template <typename Loop> void add(Loop&& loop) const {
    lanes_.over_rows(kBlock, [&](Index at, Index steps, Index width) {
      std::fill_n(first_, width, 0.0F);
      std::fill_n(second_, width, 0.0F);
      loop(at, steps, width, first_, second_);
      for (Index lane = 0; lane < width; ++lane) {
        first()[lane % channels_] += first_[lane];
        second()[lane % channels_] += second_[lane];
      }
    });
  }
  double* first() const { return reinterpret_cast<double*>(totals_.data()); }
  double* second() const { return first() + channels_; }

 private:
  const RowsTogether& lanes_;
  Index channels_;
  float *first_, *second_;
  Buffer totals_;
};

void batch_norm_statistics(In x, Out mean, Out variance, Stream& stream) {
  const Index channels = mean.count();
  if (x.count() == 0) return reference_kernels().batch_norm_statistics(x, mean, variance, stream);
  const RowsTogether lanes(x.count(), channels, 3);
  const float* const shift = lanes.spread(0, [&](Index c) { return x.floats()[c]; });
  const ChannelSums sums(lanes, channels, 1);
  sums.add([&](Index at, Index steps, Index width, float* first, float* second) {
    shifted_sums(x.floats() + at, shift, steps, width, first, second);
  });
  const double rows = static_cast<double>(x.count() / channels);
  for (Index c = 0; c < channels; ++c) {
    const double offset = sums.first()[c] / rows;
    mean.floats()[c] = static_cast<float>(shift[c] + offset);
    variance.floats()[c] = static_cast<float>(std::max(sums.second()[c] / rows - offset * offset, 0.0));
    if (std::isnan(sums.second()[c])) variance.floats()[c] = static_cast<float>(sums.second()[c]);
  }
}

double inverse_of(const BatchNormParams& params, In variance, Index c) {
  return 1 / std::sqrt(static_cast<double>(variance.floats()[c]) + params.eps);
}

void batch_norm(const BatchNormParams& params, In x, In mean, In variance, In weight, In bias, Out y, Stream&) {
  if (x.count() == 0) return;
  const RowsTogether lanes(x.count(), mean.count(), 3);
  const float* const center = lanes.spread(0, [&](Index c) { return mean.floats()[c]; });
  const float* const factor =
      lanes.spread(1, [&](Index c) { return inverse_of(params, variance, c) * (weight ? weight.floats()[c] : 1.0F); });
  const float* const offset = lanes.spread(2, [&](Index c) { return bias ? bias.floats()[c] : 0.0F; });
  lanes.over_rows(lanes.steps(), [&](Index at, Index steps, Index width) {
    normalize(x.floats() + at, center, factor, offset, steps, width, params.relu, y.floats() + at);
  });
}

void batch_norm_backward(const BatchNormParams& params, In x, In y_grad, In mean, In variance, In weight, In bias,
                         Out x_grad, Out weight_grad, Out bias_grad, Stream& stream) {
  if (x.count() == 0)
    return reference_kernels().batch_norm_backward(params, x, y_grad, mean, variance, weight, bias, x_grad, weight_grad,
                                                   bias_grad, stream);
  const Index channels = mean.count();
  const double rows = static_cast<double>(x.count() / channels);
  const RowsTogether lanes(x.count(), channels, 7);
  const float* const center = lanes.spread(0, [&](Index c) { return mean.floats()[c]; });
  const float* const factor =
      lanes.spread(1, [&](Index c) { return inverse_of(params, variance, c) * (weight ? weight.floats()[c] : 1.0F); });
  const float* const offset = lanes.spread(2, [&](Index c) { return bias ? bias.floats()[c] : 0.0F; });
  const ChannelSums sums(lanes, channels, 3);
  sums.add([&](Index at, Index steps, Index width, float* first, float* second) {
    gradient_sums(x.floats() + at, y_grad.floats() + at, center, factor, offset, steps, width, params.relu, first,
                  second);
  });
  const auto put = [](float& slot, double value, bool accumulate) {
    slot = accumulate ? slot + static_cast<float>(value) : static_cast<float>(value);
  };
  for (Index c = 0; c < channels; ++c) {
    if (weight_grad)
      put(weight_grad.floats()[c], sums.second()[c] * inverse_of(params, variance, c), weight_grad.accumulate);
    if (bias_grad) put(bias_grad.floats()[c], sums.first()[c], bias_grad.accumulate);
  }
  if (!x_grad) return;
  const double share = params.constant_statistics ? 0 : 1 / rows;
  const float* const mean_grad = lanes.spread(5, [&](Index c) { return sums.first()[c] * share; });
  const float* const slope = lanes.spread(6, [&](Index c) {
    const double inverse = inverse_of(params, variance, c);
    return sums.second()[c] * share * inverse * inverse;
  });
  lanes.over_rows(lanes.steps(), [&](Index at, Index steps, Index width) {
    gradients(x.floats() + at, y_grad.floats() + at, center, factor, offset, mean_grad, slope, steps, width,
              params.relu, x_grad.accumulate, x_grad.floats() + at);
  });
}

}  // namespace

void use_batch_norm(KernelTable& table) {
  table.batch_norm_statistics = any_float<batch_norm_statistics>;
  table.batch_norm = any_float<batch_norm>;
  table.batch_norm_backward = any_float<batch_norm_backward>;
}

}  // namespace lockstep::fast
