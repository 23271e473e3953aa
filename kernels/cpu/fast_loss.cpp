// Losses that are sums over elements, and those of rows of logits, each of which lies in a cache between its passes.
//
// Sixteen sums side by side, added at the end in a fixed order: the same bits from every build.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/fast.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector_math.h"
#include "lockstep/core/cpu_dispatch.h"

namespace lockstep::fast {

namespace {

constexpr Index kSums = 16;

LOCKSTEP_VECTOR_MATH float squared_error(float x, float t) { return (x - t) * (x - t); }
LOCKSTEP_VECTOR_MATH float squared_error_by_x(float x, float t) { return 2.0F * (x - t); }

LOCKSTEP_VECTOR_MATH float absolute_error(float x, float t) { return vector_math::abs(x - t); }
LOCKSTEP_VECTOR_MATH float absolute_error_by_x(float x, float t) {
  const float of_unequal = x > t ? 1.0F : -1.0F;
  return ((x > t) | (x < t)) ? of_unequal : x - t;  // 0 of equals, NaN of NaN
}

LOCKSTEP_VECTOR_MATH float binary_cross_entropy_by_x(float x, float t) { return vector_math::sigmoid(x) - t; }

// The sum of an element's loss over all.
#define LOCKSTEP_ELEMENTS_SUM(name)                                                                                 \
  LOCKSTEP_CPU_DISPATCH(double, sum_of_##name, (const float* x, const float* t, Index count), (x, t, count), {      \
    double sums[kSums] = {};                                                                                        \
    Index i = 0;                                                                                                    \
    for (; i + kSums <= count; i += kSums)                                                                          \
      for (Index lane = 0; lane < kSums; ++lane) sums[lane] += static_cast<double>(name(x[i + lane], t[i + lane])); \
    for (; i < count; ++i) sums[i % kSums] += static_cast<double>(name(x[i], t[i]));                                \
    double total = 0;                                                                                               \
    for (Index lane = 0; lane < kSums; ++lane) total += sums[lane];                                                 \
    return total;                                                                                                   \
  })
LOCKSTEP_ELEMENTS_SUM(squared_error)
LOCKSTEP_ELEMENTS_SUM(absolute_error)
#undef LOCKSTEP_ELEMENTS_SUM

// The gradient of each element.
#define LOCKSTEP_ELEMENTS_GRADIENT(name)                                                                                                  \
  LOCKSTEP_CPU_DISPATCH(void, name##_gradient, (const float* x, const float* t, float factor, bool accumulate, float* grad, Index count), \
                        (x, t, factor, accumulate, grad, count), {                                                                        \
                          if (accumulate) {                                                                                               \
                            LOCKSTEP_INDEPENDENT_ITERATIONS                                                                               \
                            for (Index i = 0; i < count; ++i) grad[i] += name##_by_x(x[i], t[i]) * factor;                                \
                          } else {                                                                                                        \
                            LOCKSTEP_INDEPENDENT_ITERATIONS                                                                               \
                            for (Index i = 0; i < count; ++i) grad[i] = name##_by_x(x[i], t[i]) * factor;                                 \
                          }                                                                                                               \
                        })
LOCKSTEP_ELEMENTS_GRADIENT(squared_error)
LOCKSTEP_ELEMENTS_GRADIENT(absolute_error)
LOCKSTEP_ELEMENTS_GRADIENT(binary_cross_entropy)
#undef LOCKSTEP_ELEMENTS_GRADIENT

// Binary cross entropy is max(x, 0) - x t + log(1 + z) with z = e^-|x|. One logarithm serves many elements: that of the product of their
// 1 + z, none of which is above 2. What the product has above 1 is kept, so that a sum of small z keeps its digits.
constexpr Index kPiece = 512, kPiecesOfALogarithm = 16;  // of each lane 512 factors: below 2^512

LOCKSTEP_CPU_DISPATCH(void, add_binary_cross_entropies, (const float* x, const float* t, Index count, double* sums, double* excess),
                      (x, t, count, sums, excess), {
                        float linear[kPiece];
                        float powers[kPiece];
                        LOCKSTEP_INDEPENDENT_ITERATIONS
                        for (Index i = 0; i < count; ++i) {
                          const float clamped = x[i] < 0 ? 0.0F : x[i];
                          linear[i] = clamped - x[i] * t[i];
                          powers[i] = vector_math::normal_exp(-vector_math::abs(x[i]));
                        }
                        Index end = count;
                        for (; end % kSums != 0; ++end) linear[end] = powers[end] = 0;
                        double own_sums[kSums];
                        double own_excess[kSums];
                        for (Index lane = 0; lane < kSums; ++lane) own_sums[lane] = sums[lane], own_excess[lane] = excess[lane];
                        for (Index i = 0; i < end; i += kSums)
                          for (Index lane = 0; lane < kSums; ++lane) {
                            const double z = powers[i + lane];
                            own_sums[lane] += static_cast<double>(linear[i + lane]);
                            own_excess[lane] += own_excess[lane] * z + z;
                          }
                        for (Index lane = 0; lane < kSums; ++lane) sums[lane] = own_sums[lane], excess[lane] = own_excess[lane];
                      })

double sum_of_binary_cross_entropy(const float* x, const float* t, Index count) {
  double sums[kSums] = {}, total = 0;
  for (Index i = 0; i < count;) {
    double excess[kSums] = {};
    for (Index piece = 0; piece < kPiecesOfALogarithm && i < count; ++piece, i += kPiece)
      add_binary_cross_entropies(x + i, t + i, std::min(kPiece, count - i), sums, excess);
    for (const double above_one : excess) total += std::log1p(above_one);
  }
  for (const double sum : sums) total += sum;
  return total;
}

}  // namespace

LOCKSTEP_CPU_DISPATCH(double, sum_of_squares, (const float* x, Index count), (x, count), {
  double sums[kSums] = {};
  Index i = 0;
  for (; i + kSums <= count; i += kSums)
    for (Index lane = 0; lane < kSums; ++lane) {
      const double value = x[i + lane];
      sums[lane] += value * value;
    }
  for (; i < count; ++i) sums[i % kSums] += static_cast<double>(x[i]) * x[i];
  double total = 0;
  for (Index lane = 0; lane < kSums; ++lane) total += sums[lane];
  return total;
})

namespace {

using SumOf = double (*)(const float* x, const float* t, Index count);
using Gradient = void (*)(const float* x, const float* t, float factor, bool accumulate, float* grad, Index count);

template <SumOf sum>
void loss_of_elements(In x, In target, bool mean, Out loss, Stream&) {
  const double total = sum(x.floats(), target.floats(), x.count());
  *loss.floats() = static_cast<float>(mean ? total / static_cast<double>(x.count()) : total);
}

float factor_of(In x, In loss_grad, bool mean) {
  return mean ? static_cast<float>(*loss_grad.floats() / static_cast<double>(x.count())) : *loss_grad.floats();
}

// Of losses with x and target in the same role.
template <Gradient gradient>
void symmetric_gradients(In x, In target, In loss_grad, bool mean, Out x_grad, Out target_grad, Stream&) {
  const float factor = factor_of(x, loss_grad, mean), *const from = x.floats(), *const to = target.floats();
  if (x_grad) gradient(from, to, factor, x_grad.accumulate, x_grad.floats(), x.count());
  if (target_grad) gradient(to, from, factor, target_grad.accumulate, target_grad.floats(), x.count());
}

void binary_cross_entropy_backward(In x, In target, In loss_grad, bool mean, Out x_grad, Out target_grad, Stream& stream) {
  const float factor = factor_of(x, loss_grad, mean);
  if (x_grad) binary_cross_entropy_gradient(x.floats(), target.floats(), factor, x_grad.accumulate, x_grad.floats(), x.count());
  if (target_grad) cpu_device().kernels().scale(x, -factor, target_grad, stream);
}

// The sum of x - largest: sums of the logits themselves would have the digits of `largest` alone.
LOCKSTEP_CPU_DISPATCH(double, sum_of_distances, (const float* x, float largest, Index count), (x, largest, count), {
  double sums[kSums] = {};
  Index i = 0;
  for (; i + kSums <= count; i += kSums)
    for (Index lane = 0; lane < kSums; ++lane) sums[lane] += static_cast<double>(x[i + lane] - largest);
  for (; i < count; ++i) sums[i % kSums] += static_cast<double>(x[i] - largest);
  double total = 0;
  for (Index lane = 0; lane < kSums; ++lane) total += sums[lane];
  return total;
})

// The label's own term; NaN where there is no such class.
double loss_at(const float* row, Index classes, Index label) {
  return label >= 0 && label < classes ? row[label] : std::numeric_limits<double>::quiet_NaN();
}

void softmax_cross_entropy(const CrossEntropyParams& params, In in, In targets, Out loss, Out out, Stream&) {
  const Index batch = in.shape[0], classes = in.shape[1];
  const double smoothing = params.label_smoothing;
  double total = 0;
  for (Index n = 0; n < batch; ++n) {
    const float* const row = in.floats() + n * classes;
    float* const probabilities = out.floats() + n * classes;
    const float largest = row_maximum(row, classes), sum = row_exponentials(row, largest, classes, probabilities);
    scale_row(probabilities, 1 / sum, classes);
    const double log_sum = std::log(static_cast<double>(sum));
    const double of_label = log_sum - (loss_at(row, classes, targets.as<Index>()[n]) - largest);
    // A logit of -infinity counts only at the label, if nothing is smoothed.
    total += smoothing == 0 ? of_label
                            : (1 - smoothing) * of_label +
                                  smoothing * (log_sum - sum_of_distances(row, largest, classes) / static_cast<double>(classes));
  }
  *loss.floats() = static_cast<float>(params.mean ? total / static_cast<double>(batch) : total);
}

LOCKSTEP_CPU_DISPATCH(void, logits_gradient,
                      (const float* probabilities, float target, float factor, Index count, bool accumulate, float* grad),
                      (probabilities, target, factor, count, accumulate, grad), {
                        if (accumulate) {
                          LOCKSTEP_INDEPENDENT_ITERATIONS
                          for (Index k = 0; k < count; ++k) grad[k] += (probabilities[k] - target) * factor;
                        } else {
                          LOCKSTEP_INDEPENDENT_ITERATIONS
                          for (Index k = 0; k < count; ++k) grad[k] = (probabilities[k] - target) * factor;
                        }
                      })

double row_factor_of(In loss_grad, bool mean, Index batch) {
  return mean ? *loss_grad.floats() / static_cast<double>(batch) : *loss_grad.floats();
}

void softmax_cross_entropy_backward(const CrossEntropyParams& params, In out, In targets, In loss_grad, Out logits_grad, Stream&) {
  const Index batch = out.shape[0], classes = out.shape[1];
  const double factor = row_factor_of(loss_grad, params.mean, batch), smoothing = params.label_smoothing;
  const double of_each = smoothing / static_cast<double>(classes);
  for (Index n = 0; n < batch; ++n) {
    const float* const probabilities = out.floats() + n * classes;
    float* const grad = logits_grad.floats() + n * classes;
    const Index label = targets.as<Index>()[n];
    if (label < 0 || label >= classes) {
      std::fill_n(grad, classes, std::numeric_limits<float>::quiet_NaN());
      continue;
    }
    const double before = logits_grad.accumulate ? grad[label] : 0;
    logits_gradient(probabilities, static_cast<float>(of_each), static_cast<float>(factor), classes, logits_grad.accumulate, grad);
    grad[label] = static_cast<float>(before + (probabilities[label] - (of_each + 1 - smoothing)) * factor);
  }
}

void nll_loss(In in, In targets, bool mean, Out loss, Stream&) {
  const Index batch = in.shape[0], classes = in.shape[1];
  double total = 0;
  for (Index n = 0; n < batch; ++n) total -= loss_at(in.floats() + n * classes, classes, targets.as<Index>()[n]);
  *loss.floats() = static_cast<float>(mean ? total / static_cast<double>(batch) : total);
}

void nll_loss_backward(In targets, In loss_grad, bool mean, Out out, Stream&) {
  const Index batch = out.shape[0], classes = out.shape[1];
  const double factor = row_factor_of(loss_grad, mean, batch);
  for (Index n = 0; n < batch; ++n) {
    float* const grad = out.floats() + n * classes;
    const Index label = targets.as<Index>()[n];
    const bool is_label = label >= 0 && label < classes;
    if (!is_label || !out.accumulate) std::fill_n(grad, classes, is_label ? 0.0F : std::numeric_limits<float>::quiet_NaN());
    if (is_label) grad[label] = static_cast<float>(grad[label] - factor);
  }
}

void l2_loss(In x, Out loss, Stream&) { *loss.floats() = static_cast<float>(sum_of_squares(x.floats(), x.count()) / 2); }

}  // namespace

void use_loss(KernelTable& table) {
  table.softmax_cross_entropy = softmax_cross_entropy;
  table.softmax_cross_entropy_backward = softmax_cross_entropy_backward;
  table.nll_loss = nll_loss;
  table.nll_loss_backward = nll_loss_backward;
  table.mse_loss = loss_of_elements<sum_of_squared_error>;
  table.mse_loss_backward = symmetric_gradients<squared_error_gradient>;
  table.l1_loss = loss_of_elements<sum_of_absolute_error>;
  table.l1_loss_backward = symmetric_gradients<absolute_error_gradient>;
  table.binary_cross_entropy_with_logits = loss_of_elements<sum_of_binary_cross_entropy>;
  table.binary_cross_entropy_with_logits_backward = binary_cross_entropy_backward;
  table.l2_loss = l2_loss;
}

}  // namespace lockstep::fast
