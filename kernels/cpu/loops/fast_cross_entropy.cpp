// Losses of rows of logits; a row stays in a cache between its passes.
//
// There are sixteen partial sums, added at the end in a fixed order: the same bits from every build.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/loops/fast.h"
#include "kernels/cpu/math/rows.h"
#include "lockstep/core/cpu_dispatch.h"

namespace lockstep::fast {

namespace {

constexpr Index kRowSums = 16;

// For a row's coefficients w_k * (keep * t_k + each) of operators.def, without t or w if they are null: out[0] = their
// sum, out[1] = the sum of their products with largest - x_k, where zero coefficients do not count.
#define LOCKSTEP_COEFFICIENT_SUMS(coefficient)                                \
  {                                                                           \
    Index i = 0;                                                              \
    for (; i + kRowSums <= count; i += kRowSums)                              \
      for (Index lane = 0; lane < kRowSums; ++lane) {                         \
        const Index k = i + lane;                                             \
        const float c = coefficient;                                          \
        const float product = c * (largest - x[k]);                           \
        sums[lane] += static_cast<double>(c);                                 \
        products[lane] += static_cast<double>(c == 0 ? 0.0F : product);       \
      }                                                                       \
    for (Index k = i; k < count; ++k) {                                       \
      const float c = coefficient;                                            \
      const float product = c * (largest - x[k]);                             \
      sums[k % kRowSums] += static_cast<double>(c);                           \
      products[k % kRowSums] += static_cast<double>(c == 0 ? 0.0F : product); \
    }                                                                         \
  }
LOCKSTEP_CPU_DISPATCH(void, coefficient_sums,
                      (const float* x, float largest, const float* t, const float* w, float keep, float each,
                       Index count, double* out),
                      (x, largest, t, w, keep, each, count, out), {
                        double sums[kRowSums] = {};
                        double products[kRowSums] = {};
                        if (t != nullptr && w != nullptr)
                          LOCKSTEP_COEFFICIENT_SUMS(w[k] * (keep * t[k] + each))
                        else if (t != nullptr)
                          LOCKSTEP_COEFFICIENT_SUMS(keep * t[k] + each)
                        else if (w != nullptr)
                          LOCKSTEP_COEFFICIENT_SUMS(w[k] * each)
                        else
                          LOCKSTEP_COEFFICIENT_SUMS(each)
                        out[0] = out[1] = 0;
                        for (Index lane = 0; lane < kRowSums; ++lane) out[0] += sums[lane], out[1] += products[lane];
                      })
#undef LOCKSTEP_COEFFICIENT_SUMS

// The gradient of the same row: (sum * p_k - coefficient) * factor.
LOCKSTEP_CPU_DISPATCH(void, coefficient_gradient,
                      (const float* p, float sum, const float* t, const float* w, float keep, float each, float factor,
                       Index count, bool accumulate, float* grad),
                      (p, sum, t, w, keep, each, factor, count, accumulate, grad), {
                        LOCKSTEP_INDEPENDENT_ITERATIONS
                        for (Index k = 0; k < count; ++k) {
                          const float target = t == nullptr ? each : keep * t[k] + each;
                          const float coefficient = w == nullptr ? target : w[k] * target;
                          const float slope = (sum * p[k] - coefficient) * factor;
                          grad[k] = accumulate ? grad[k] + slope : slope;
                        }
                      })

// The targets of the rows of scores (N, K): labels or soft targets, and the classes' weights.
struct RowTargets {
  const CrossEntropyParams& params;
  const Index* labels;
  const float *soft, *weight;
  Index classes;

  RowTargets(const CrossEntropyParams& params, In targets, In weights, Index classes)
      : params(params),
        labels(targets.dtype == DType::kInt64 ? targets.as<Index>() : nullptr),
        soft(targets.dtype == DType::kInt64 ? nullptr : targets.floats()),
        weight(weights.floats()),
        classes(classes) {}
  bool has_plain_labels() const { return soft == nullptr && weight == nullptr; }
  bool is_ignored(Index n) const { return soft == nullptr && labels[n] == params.ignore_index; }
  bool is_label(Index n) const { return labels[n] >= 0 && labels[n] < classes; }
  float keep() const { return 1 - params.label_smoothing; }
  float each() const { return params.label_smoothing / static_cast<float>(classes); }
  const float* soft_row(Index n) const { return soft == nullptr ? nullptr : soft + n * classes; }
  // The row's part of the divisor.
  double weight_of(Index n) const {
    if (is_ignored(n)) return 0;
    if (soft != nullptr || weight == nullptr) return 1;
    return is_label(n) ? weight[labels[n]] : 0;
  }
};

// Sums the rows' losses, and the divisor of their mean.
struct RowLosses {
  Reduction reduction;
  Out loss, divisor;
  double sum = 0, weights = 0;

  void add(Index n, double of_row, double weight) {
    sum += of_row, weights += weight;
    if (reduction == Reduction::kNone) loss.floats()[n] = static_cast<float>(of_row);
  }
  void finish() {
    if (reduction == Reduction::kSum) *loss.floats() = static_cast<float>(sum);
    if (reduction != Reduction::kMean) return;
    if (sum == 0 && weights == 0) weights = std::numeric_limits<double>::infinity();
    *loss.floats() = static_cast<float>(sum / weights);
    *divisor.floats() = static_cast<float>(weights);
  }
};

// The factor of a row's gradients.
double row_factor(Reduction reduction, In divisor, In loss_grad, Index n) {
  if (reduction == Reduction::kNone) return loss_grad.floats()[n];
  return reduction == Reduction::kMean ? *loss_grad.floats() / static_cast<double>(*divisor.floats())
                                       : *loss_grad.floats();
}

// The label's own term; NaN if there is no such class.
double loss_at(const float* row, Index classes, Index label) {
  return label >= 0 && label < classes ? row[label] : std::numeric_limits<double>::quiet_NaN();
}

// The sum of x - largest. Sums of the logits themselves would only have the precision of `largest`.
LOCKSTEP_CPU_DISPATCH(double, sum_of_distances, (const float* x, float largest, Index count), (x, largest, count), {
  double sums[kRowSums] = {};
  Index i = 0;
  for (; i + kRowSums <= count; i += kRowSums)
    for (Index lane = 0; lane < kRowSums; ++lane) sums[lane] += static_cast<double>(x[i + lane] - largest);
  for (; i < count; ++i) sums[i % kRowSums] += static_cast<double>(x[i] - largest);
  double total = 0;
  for (Index lane = 0; lane < kRowSums; ++lane) total += sums[lane];
  return total;
})

// The loss of a row with a label and without class weights. `sum` is the sum of exp(logit - largest).
double plain_row_loss(const float* row, Index classes, Index label, float largest, float sum, double smoothing) {
  const double log_sum = std::log(static_cast<double>(sum));
  const double of_label = log_sum - (loss_at(row, classes, label) - largest);
  // A logit of -infinity counts only at the label, if nothing is smoothed.
  return smoothing == 0 ? of_label
                        : (1 - smoothing) * of_label + smoothing * (log_sum - sum_of_distances(row, largest, classes) /
                                                                                  static_cast<double>(classes));
}

double weighted_row_loss(const RowTargets& wanted, Index n, const float* row, float largest, float sum) {
  const double log_sum = std::log(static_cast<double>(sum));  // relative to the largest logit
  double sums[2] = {};
  if (wanted.soft != nullptr || wanted.params.label_smoothing != 0)
    coefficient_sums(row, largest, wanted.soft_row(n), wanted.weight, wanted.keep(), wanted.each(), wanted.classes,
                     sums);
  const double of_coefficients = sums[0] * log_sum + sums[1];
  if (wanted.soft != nullptr) return of_coefficients;
  if (!wanted.is_label(n)) return std::numeric_limits<double>::quiet_NaN();
  const Index label = wanted.labels[n];
  const double coefficient = static_cast<double>(wanted.weight[label]) * wanted.keep();
  return of_coefficients +
         (coefficient == 0 ? 0 : coefficient * (log_sum + (static_cast<double>(largest) - row[label])));
}

void softmax_cross_entropy(const CrossEntropyParams& params, In in, In targets, In weight, Out loss, Out divisor,
                           Out out, Stream&) {
  const Index batch = in.shape[0], classes = in.shape[1];
  const RowTargets wanted(params, targets, weight, classes);
  RowLosses losses{params.reduction, loss, divisor};
  for (Index n = 0; n < batch; ++n) {
    const float* const row = in.floats() + n * classes;
    float* const probabilities = out.floats() + n * classes;
    if (wanted.is_ignored(n)) {
      std::fill_n(probabilities, classes, 0.0F);
      losses.add(n, 0, 0);
      continue;
    }
    const float largest = row_maximum(row, classes), sum = row_exponentials(row, largest, classes, probabilities);
    scale_row(probabilities, 1 / sum, classes);
    losses.add(n,
               wanted.has_plain_labels()
                   ? plain_row_loss(row, classes, wanted.labels[n], largest, sum, params.label_smoothing)
                   : weighted_row_loss(wanted, n, row, largest, sum),
               wanted.weight_of(n));
  }
  losses.finish();
}

LOCKSTEP_CPU_DISPATCH(void, logits_gradient,
                      (const float* probabilities, float target, float factor, Index count, bool accumulate,
                       float* grad),
                      (probabilities, target, factor, count, accumulate, grad), {
                        if (accumulate) {
                          LOCKSTEP_INDEPENDENT_ITERATIONS
                          for (Index k = 0; k < count; ++k) grad[k] += (probabilities[k] - target) * factor;
                        } else {
                          LOCKSTEP_INDEPENDENT_ITERATIONS
                          for (Index k = 0; k < count; ++k) grad[k] = (probabilities[k] - target) * factor;
                        }
                      })

// False: the row's gradients are 0 or NaN, and have been written.
bool has_gradients(const RowTargets& wanted, Index n, bool accumulate, float* grad) {
  const bool is_ignored = wanted.is_ignored(n), is_target = wanted.soft != nullptr || wanted.is_label(n);
  if (!is_ignored && is_target) return true;
  if (!is_ignored || !accumulate)
    std::fill_n(grad, wanted.classes, is_ignored ? 0.0F : std::numeric_limits<float>::quiet_NaN());
  return false;
}

void plain_row_gradients(const RowTargets& wanted, Index n, const float* probabilities, double factor, bool accumulate,
                         float* grad) {
  const double smoothing = wanted.params.label_smoothing, of_each = smoothing / static_cast<double>(wanted.classes);
  const Index label = wanted.labels[n];
  const double before = accumulate ? grad[label] : 0;
  logits_gradient(probabilities, static_cast<float>(of_each), static_cast<float>(factor), wanted.classes, accumulate,
                  grad);
  grad[label] = static_cast<float>(before + (probabilities[label] - (of_each + 1 - smoothing)) * factor);
}

void weighted_row_gradients(const RowTargets& wanted, Index n, const float* probabilities, double factor,
                            bool accumulate, float* grad) {
  double sums[2] = {};
  if (wanted.soft != nullptr || wanted.params.label_smoothing != 0)
    coefficient_sums(probabilities, 0, wanted.soft_row(n), wanted.weight, wanted.keep(), wanted.each(), wanted.classes,
                     sums);
  double of_label = 0;
  if (wanted.soft == nullptr) of_label = static_cast<double>(wanted.weight[wanted.labels[n]]) * wanted.keep();
  coefficient_gradient(probabilities, static_cast<float>(sums[0] + of_label), wanted.soft_row(n), wanted.weight,
                       wanted.keep(), wanted.each(), static_cast<float>(factor), wanted.classes, accumulate, grad);
  if (wanted.soft == nullptr) grad[wanted.labels[n]] -= static_cast<float>(of_label * factor);
}

void softmax_cross_entropy_backward(const CrossEntropyParams& params, In out, In targets, In weight, In divisor,
                                    In loss_grad, Out logits_grad, Stream&) {
  const Index batch = out.shape[0], classes = out.shape[1];
  const RowTargets wanted(params, targets, weight, classes);
  for (Index n = 0; n < batch; ++n) {
    const float* const probabilities = out.floats() + n * classes;
    float* const grad = logits_grad.floats() + n * classes;
    if (!has_gradients(wanted, n, logits_grad.accumulate, grad)) continue;
    const double factor = row_factor(params.reduction, divisor, loss_grad, n);
    (wanted.has_plain_labels() ? plain_row_gradients : weighted_row_gradients)(wanted, n, probabilities, factor,
                                                                               logits_grad.accumulate, grad);
  }
}

void nll_loss(const CrossEntropyParams& params, In in, In targets, In weight, Out loss, Out divisor, Stream&) {
  const Index batch = in.shape[0], classes = in.shape[1];
  const RowTargets wanted(params, targets, weight, classes);
  RowLosses losses{params.reduction, loss, divisor};
  for (Index n = 0; n < batch; ++n) {
    const double of_row = wanted.weight_of(n);
    const bool counts = of_row != 0 || !(wanted.is_ignored(n) || wanted.is_label(n));
    losses.add(
        n,
        counts ? (wanted.is_label(n) ? of_row : 1.0) * -loss_at(in.floats() + n * classes, classes, wanted.labels[n])
               : 0,
        of_row);
  }
  losses.finish();
}

void nll_loss_backward(const CrossEntropyParams& params, In targets, In weight, In divisor, In loss_grad, Out out,
                       Stream&) {
  const Index batch = out.shape[0], classes = out.shape[1];
  const RowTargets wanted(params, targets, weight, classes);
  for (Index n = 0; n < batch; ++n) {
    float* const grad = out.floats() + n * classes;
    if (!has_gradients(wanted, n, out.accumulate, grad)) continue;
    if (!out.accumulate) std::fill_n(grad, classes, 0.0F);
    float& at_label = grad[wanted.labels[n]];
    at_label = static_cast<float>(at_label - wanted.weight_of(n) * row_factor(params.reduction, divisor, loss_grad, n));
  }
}

}  // namespace

void use_cross_entropy(KernelTable& table) {
  table.softmax_cross_entropy = softmax_cross_entropy;
  table.softmax_cross_entropy_backward = softmax_cross_entropy_backward;
  table.nll_loss = nll_loss;
  table.nll_loss_backward = nll_loss_backward;
}

}  // namespace lockstep::fast
