// Losses that are sums over elements, cross entropies of rows, and CTC.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/cpu/reference/reference.h"
#include "kernels/ctc_labels.h"

namespace lockstep::reference {

// -- losses that are sums over the elements of x and target

namespace {

// The loss of one element, and its derivatives with respect to x and to the target.
struct SquaredError {
  static double value(double x, double t) { return (x - t) * (x - t); }
  static double by_x(double x, double t) { return 2 * (x - t); }
  static double by_target(double x, double t) { return 2 * (t - x); }
};
struct AbsoluteError {
  static double value(double x, double t) { return std::abs(x - t); }
  static double by_x(double x, double t) { return x > t ? 1 : x < t ? -1 : x - t; }  // 0 if equal, NaN for NaN
  static double by_target(double x, double t) { return by_x(t, x); }
};
struct BinaryCrossEntropy {
  static double value(double x, double t) { return (x < 0 ? 0 : x) - x * t + std::log1p(std::exp(-std::abs(x))); }
  static double by_x(double x, double t) { return 1 / (1 + std::exp(-x)) - t; }
  static double by_target(double x, double) { return -x; }
};

template <typename Loss> void loss_of_elements(In x, In target, bool mean, Out loss, Stream&) {
  double total = 0;
  for (Index i = 0; i < x.count(); ++i) total += Loss::value(x.floats()[i], target.floats()[i]);
  *loss.floats() = static_cast<float>(mean ? total / static_cast<double>(x.count()) : total);
}

template <typename Loss>
void gradients_of_elements(In x, In target, In loss_grad, bool mean, Out x_grad, Out target_grad, Stream&) {
  const double factor = mean ? *loss_grad.floats() / static_cast<double>(x.count()) : *loss_grad.floats();
  for (Index i = 0; i < x.count(); ++i) {
    const double from = x.floats()[i], to = target.floats()[i];
    if (x_grad) store(x_grad.floats()[i], Loss::by_x(from, to) * factor, x_grad.accumulate);
    if (target_grad) store(target_grad.floats()[i], Loss::by_target(from, to) * factor, target_grad.accumulate);
  }
}

void l2_loss(In x, Out loss, Stream&) {
  const float* const values = x.floats();
  double sum = 0;
  for (Index i = 0; i < x.count(); ++i) sum += static_cast<double>(values[i]) * values[i];
  *loss.floats() = static_cast<float>(sum / 2);
}

}  // namespace

void use_loss(KernelTable& table) {
  table.mse_loss = loss_of_elements<SquaredError>;
  table.mse_loss_backward = gradients_of_elements<SquaredError>;
  table.l1_loss = loss_of_elements<AbsoluteError>;
  table.l1_loss_backward = gradients_of_elements<AbsoluteError>;
  table.binary_cross_entropy_with_logits = loss_of_elements<BinaryCrossEntropy>;
  table.binary_cross_entropy_with_logits_backward = gradients_of_elements<BinaryCrossEntropy>;
  table.l2_loss = l2_loss;
}

// -- cross entropy of a softmax, and of log probabilities

// The logits are shifted by the largest one, so that exp() does not overflow.

namespace {

// On the CPU the operator has checked the labels. On a GPU it has not, and an invalid label makes loss and gradient
// NaN.
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// The targets of the rows of scores (N, K): labels or soft targets, and the classes' weights.
class RowTargets {
 public:
  RowTargets(const CrossEntropyParams& params, In targets, In weight, Index classes)
      : ignored_(params.ignore_index),
        smoothing_(params.label_smoothing),
        labels_(targets.dtype == DType::kInt64 ? targets.as<Index>() : nullptr),
        soft_(labels_ == nullptr && targets.dtype == DType::kFloat32 ? targets.floats() : nullptr),
        weight_(weight.floats()),
        classes_(classes) {}

  bool is_ignored(Index row) const { return labels_ != nullptr && labels_[row] == ignored_; }
  // The row's part of the divisor.
  double weight_of(Index row) const {
    if (is_ignored(row)) return 0;
    if (labels_ == nullptr || weight_ == nullptr) return 1;
    return is_label(row) ? weight_[labels_[row]] : 0;
  }
  // c_k of operators.def.
  double coefficient(Index row, Index k) const {
    if (labels_ != nullptr && !is_label(row)) return kNan;
    const double target = labels_ != nullptr ? (labels_[row] == k ? 1.0 : 0.0) : soft_[row * classes_ + k];
    return (weight_ == nullptr ? 1.0 : weight_[k]) *
           ((1 - smoothing_) * target + smoothing_ / static_cast<double>(classes_));
  }

 private:
  bool is_label(Index row) const { return labels_[row] >= 0 && labels_[row] < classes_; }

  Index ignored_;
  double smoothing_;
  const Index* labels_;
  const float *soft_, *weight_;
  Index classes_;
};

// Sums the rows' losses, and the divisor of their mean.
class RowLosses {
 public:
  RowLosses(Reduction reduction, Out loss, Out divisor) : reduction_(reduction), loss_(loss), divisor_(divisor) {}
  void add(Index row, double loss, double weight) {
    sum_ += loss, weights_ += weight;
    if (reduction_ == Reduction::kNone) loss_.floats()[row] = static_cast<float>(loss);
  }
  void finish() const {
    if (reduction_ == Reduction::kNone) return;
    if (reduction_ == Reduction::kSum) return void(*loss_.floats() = static_cast<float>(sum_));
    const double divisor = sum_ == 0 && weights_ == 0 ? std::numeric_limits<double>::infinity() : weights_;
    *loss_.floats() = static_cast<float>(sum_ / divisor);
    *divisor_.floats() = static_cast<float>(divisor);
  }

 private:
  Reduction reduction_;
  Out loss_, divisor_;
  double sum_ = 0, weights_ = 0;
};

// The factor of a row's gradients.
double row_factor(Reduction reduction, In divisor, In loss_grad, Index row) {
  if (reduction == Reduction::kNone) return loss_grad.floats()[row];
  return reduction == Reduction::kMean ? *loss_grad.floats() / static_cast<double>(*divisor.floats())
                                       : *loss_grad.floats();
}

void softmax_cross_entropy(const CrossEntropyParams& params, In in, In targets, In weight, Out loss, Out divisor,
                           Out statistics, Stream&) {
  const Index batch = in.shape[0], classes = in.shape[1];
  const RowTargets wanted(params, targets, weight, classes);
  RowLosses losses(params.reduction, loss, divisor);
  for (Index n = 0; n < batch; ++n) {
    const float* const row = in.floats() + n * classes;
    float* const of_row = statistics.floats() + n * 2;
    if (wanted.is_ignored(n)) {
      std::fill_n(of_row, 2, 0.0F);
      losses.add(n, 0, 0);
      continue;
    }
    const float largest = *std::max_element(row, row + classes);
    double sum = 0, total = 0;
    for (Index k = 0; k < classes; ++k) sum += std::exp(static_cast<double>(row[k]) - largest);
    of_row[0] = largest, of_row[1] = static_cast<float>(1 / sum);
    // A logit of -infinity counts only where the target is not 0.
    for (Index k = 0; k < classes; ++k)
      if (const double coefficient = wanted.coefficient(n, k); coefficient != 0)
        total += coefficient * (std::log(sum) - (static_cast<double>(row[k]) - largest));
    losses.add(n, total, wanted.weight_of(n));
  }
  losses.finish();
}

void softmax_cross_entropy_backward(const CrossEntropyParams& params, In in, In statistics, In targets, In weight,
                                    In divisor, In loss_grad, Out logits_grad, Stream&) {
  const Index batch = in.shape[0], classes = in.shape[1];
  const RowTargets wanted(params, targets, weight, classes);
  for (Index n = 0; n < batch; ++n) {
    const double factor = row_factor(params.reduction, divisor, loss_grad, n);
    const double largest = statistics.floats()[2 * n], inverse = statistics.floats()[2 * n + 1];
    double coefficients = 0;
    for (Index k = 0; k < classes; ++k) coefficients += wanted.coefficient(n, k);
    for (Index k = 0; k < classes; ++k) {
      const Index at = n * classes + k;
      const double probability = std::exp(in.floats()[at] - largest) * inverse;
      const double slope = wanted.is_ignored(n) ? 0 : (coefficients * probability - wanted.coefficient(n, k)) * factor;
      store(logits_grad.floats()[at], slope, logits_grad.accumulate);
    }
  }
}

void nll_loss(const CrossEntropyParams& params, In in, In targets, In weight, Out loss, Out divisor, Stream&) {
  const Index batch = in.shape[0], classes = in.shape[1];
  const RowTargets wanted({0, params.reduction, params.ignore_index}, targets, weight, classes);
  RowLosses losses(params.reduction, loss, divisor);
  for (Index n = 0; n < batch; ++n) {
    double total = 0;
    for (Index k = 0; k < classes && !wanted.is_ignored(n); ++k)
      if (const double coefficient = wanted.coefficient(n, k); coefficient != 0)
        total -= coefficient * in.floats()[n * classes + k];
    losses.add(n, total, wanted.weight_of(n));
  }
  losses.finish();
}

void nll_loss_backward(const CrossEntropyParams& params, In targets, In weight, In divisor, In loss_grad, Out grad,
                       Stream&) {
  const Index batch = grad.shape[0], classes = grad.shape[1];
  const RowTargets wanted({0, params.reduction, params.ignore_index}, targets, weight, classes);
  for (Index n = 0; n < batch; ++n) {
    const double factor = row_factor(params.reduction, divisor, loss_grad, n);
    for (Index k = 0; k < classes; ++k)
      store(grad.floats()[n * classes + k], wanted.is_ignored(n) ? 0 : -wanted.coefficient(n, k) * factor,
            grad.accumulate);
  }
}

}  // namespace

void use_cross_entropy(KernelTable& table) {
  table.softmax_cross_entropy = any_float<softmax_cross_entropy>;
  table.softmax_cross_entropy_backward = any_float<softmax_cross_entropy_backward>;
  table.nll_loss = nll_loss;
  table.nll_loss_backward = nll_loss_backward;
}

// -- CTC

namespace {

CtcSample sample_of(In labels, In lengths, Index sample, Index blank) {
  return {labels.as<Index>(), labels.shape[1], lengths.as<Index>(), lengths.shape[1], sample, blank};
}

// A place outside of the labels has no alignment.
double at_place(const std::vector<double>& row, Index s) {
  return s < 0 || s >= static_cast<Index>(row.size()) ? double{kCtcImpossible} : row[static_cast<std::size_t>(s)];
}

double log_sum_of(double a, double b, double c) {
  const double largest = std::max({a, b, c});
  return largest + std::log(std::exp(a - largest) + std::exp(b - largest) + std::exp(c - largest));
}

void ctc_loss(Index blank, In x, In labels, In lengths, Out alpha, Out loss, Stream&) {
  const Index samples = x.shape[0], steps = x.shape[1], classes = x.shape[2], row = alpha.shape[2];
  for (Index n = 0; n < samples; ++n) {
    const CtcSample of = sample_of(labels, lengths, n, blank);
    std::vector<double> before(static_cast<std::size_t>(of.width), double{kCtcImpossible}), now = before;
    for (Index t = 0; t < of.steps; ++t) {
      for (Index s = 0; s < of.width; ++s) {
        const double ways = t == 0 ? (s < 2 ? 0 : double{kCtcImpossible})
                                   : log_sum_of(at_place(before, s), at_place(before, s - 1),
                                                of.may_skip(s) ? at_place(before, s - 2) : double{kCtcImpossible});
        now[static_cast<std::size_t>(s)] =
            ctc_bounded(ways + double{x.floats()[(n * steps + t) * classes + of.label(s)]});
        alpha.floats()[(n * steps + t) * row + s] = static_cast<float>(now[static_cast<std::size_t>(s)]);
      }
      std::swap(before, now);
    }
    const double end = of.steps == 0
                           ? (of.width == 1 ? 0 : double{kCtcImpossible})
                           : log_sum_of(at_place(before, of.width - 1), at_place(before, of.width - 2), kCtcImpossible);
    const auto log_probability = static_cast<float>(end);
    loss.floats()[n] = is_ctc_impossible(log_probability) ? std::numeric_limits<float>::infinity() : -log_probability;
  }
}

void ctc_loss_backward(Index blank, In x, In labels, In lengths, In alpha, In loss, In loss_grad, Out x_grad, Stream&) {
  const Index samples = x.shape[0], steps = x.shape[1], classes = x.shape[2], row = alpha.shape[2];
  if (!x_grad.accumulate) std::fill_n(x_grad.floats(), x_grad.count(), 0.0F);
  for (Index n = 0; n < samples; ++n) {
    const CtcSample of = sample_of(labels, lengths, n, blank);
    const double log_probability = -double{loss.floats()[n]};
    if (std::isinf(log_probability)) continue;
    std::vector<double> after(static_cast<std::size_t>(of.width), double{kCtcImpossible}), now = after;
    for (Index t = of.steps - 1; t >= 0; --t) {
      const auto way = [&](Index s) {
        if (s >= of.width) return double{kCtcImpossible};
        return ctc_bounded(at_place(after, s) + double{x.floats()[(n * steps + t + 1) * classes + of.label(s)]});
      };
      std::vector<double> shares(static_cast<std::size_t>(classes));
      double sum = 0;
      for (Index s = 0; s < of.width; ++s) {
        const bool is_end = s + 2 >= of.width;
        const double beta =
            t == of.steps - 1
                ? (is_end ? 0 : double{kCtcImpossible})
                : log_sum_of(way(s), way(s + 1),
                             s + 2 < of.width && of.may_skip(s + 2) ? way(s + 2) : double{kCtcImpossible});
        now[static_cast<std::size_t>(s)] = beta;
        const double share = std::exp(alpha.floats()[(n * steps + t) * row + s] + beta - log_probability);
        shares[static_cast<std::size_t>(of.label(s))] += share;
        sum += share;
      }
      std::swap(after, now);
      for (Index c = 0; c < classes; ++c)
        if (const double share = shares[static_cast<std::size_t>(c)]; share != 0)
          x_grad.floats()[(n * steps + t) * classes + c] -= static_cast<float>(share / sum * loss_grad.floats()[n]);
    }
  }
}

}  // namespace

void use_ctc(KernelTable& table) {
  table.ctc_loss = ctc_loss;
  table.ctc_loss_backward = ctc_loss_backward;
}

}  // namespace lockstep::reference
