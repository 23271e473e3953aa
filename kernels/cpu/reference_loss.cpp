// Losses. Cross entropy of a softmax, shifted by the largest logit so that exp() stays in range; sums over elements of x and target.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/reference.h"

namespace lockstep::reference {

namespace {

// On the CPU the operator has looked at the labels; on a GPU it has not, and one outside makes loss and gradient NaN.
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
bool is_label(Index label, Index classes) { return label >= 0 && label < classes; }

// The loss of a row whose softmax has this logarithm of its sum, all relative to the row's largest logit.
double cross_entropy_of_row(const float* row, Index classes, Index label, double largest, double log_sum, double smoothing) {
  if (!is_label(label, classes)) return kNan;
  const double of_label = log_sum - (row[label] - largest);
  if (smoothing == 0) return of_label;  // a logit of -infinity counts only at the label
  double of_all = 0;
  for (Index k = 0; k < classes; ++k) of_all += log_sum - (row[k] - largest);
  return (1 - smoothing) * of_label + smoothing * of_all / static_cast<double>(classes);
}

void softmax_cross_entropy(const CrossEntropyParams& params, In in, In targets, Out loss, Out out, Stream&) {
  const Index batch = in.shape[0], classes = in.shape[1];
  const float* const logits = in.floats();
  const Index* const labels = targets.as<Index>();
  float* const probabilities = out.floats();
  double total = 0;
  for (Index n = 0; n < batch; ++n) {
    const float* row = logits + n * classes;
    const float largest = *std::max_element(row, row + classes);
    double sum = 0;
    for (Index k = 0; k < classes; ++k) sum += std::exp(static_cast<double>(row[k]) - largest);
    for (Index k = 0; k < classes; ++k)
      probabilities[n * classes + k] = static_cast<float>(std::exp(static_cast<double>(row[k]) - largest) / sum);
    total += cross_entropy_of_row(row, classes, labels[n], largest, std::log(sum), params.label_smoothing);
  }
  *loss.floats() = static_cast<float>(params.mean ? total / static_cast<double>(batch) : total);
}

void softmax_cross_entropy_backward(const CrossEntropyParams& params, In out, In targets, In loss_grad, Out logits_grad, Stream&) {
  const Index batch = out.shape[0], classes = out.shape[1];
  const float* const probabilities = out.floats();
  const Index* const labels = targets.as<Index>();
  const double factor = params.mean ? *loss_grad.floats() / static_cast<double>(batch) : *loss_grad.floats();
  const double of_each = static_cast<double>(params.label_smoothing) / static_cast<double>(classes),
               of_label = 1.0 - params.label_smoothing;
  for (Index n = 0; n < batch; ++n)
    for (Index k = 0; k < classes; ++k) {
      const Index at = n * classes + k;
      const double target = is_label(labels[n], classes) ? of_each + (labels[n] == k ? of_label : 0) : kNan;
      store(logits_grad.floats()[at], (probabilities[at] - target) * factor, logits_grad.accumulate);
    }
}

void nll_loss(In in, In targets, bool mean, Out loss, Stream&) {
  const Index batch = in.shape[0], classes = in.shape[1];
  const Index* const labels = targets.as<Index>();
  double total = 0;
  for (Index n = 0; n < batch; ++n) total -= is_label(labels[n], classes) ? in.floats()[n * classes + labels[n]] : kNan;
  *loss.floats() = static_cast<float>(mean ? total / static_cast<double>(batch) : total);
}

void nll_loss_backward(In targets, In loss_grad, bool mean, Out grad, Stream&) {
  const Index batch = grad.shape[0], classes = grad.shape[1];
  const Index* const labels = targets.as<Index>();
  const double factor = mean ? *loss_grad.floats() / static_cast<double>(batch) : *loss_grad.floats();
  for (Index n = 0; n < batch; ++n)
    for (Index k = 0; k < classes; ++k) {
      const double value = !is_label(labels[n], classes) ? kNan : labels[n] == k ? -factor : 0;
      store(grad.floats()[n * classes + k], value, grad.accumulate);
    }
}

// Losses that are sums over elements: an element's, and its derivatives by x and by the target.
struct SquaredError {
  static double value(double x, double t) { return (x - t) * (x - t); }
  static double by_x(double x, double t) { return 2 * (x - t); }
  static double by_target(double x, double t) { return 2 * (t - x); }
};
struct AbsoluteError {
  static double value(double x, double t) { return std::abs(x - t); }
  static double by_x(double x, double t) { return x > t ? 1 : x < t ? -1 : x - t; }  // 0 of equals, NaN of NaN
  static double by_target(double x, double t) { return by_x(t, x); }
};
struct BinaryCrossEntropy {
  static double value(double x, double t) { return (x < 0 ? 0 : x) - x * t + std::log1p(std::exp(-std::abs(x))); }
  static double by_x(double x, double t) { return 1 / (1 + std::exp(-x)) - t; }
  static double by_target(double x, double) { return -x; }
};

template <typename Loss>
void loss_of_elements(In x, In target, bool mean, Out loss, Stream&) {
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
  table.softmax_cross_entropy = softmax_cross_entropy;
  table.softmax_cross_entropy_backward = softmax_cross_entropy_backward;
  table.nll_loss = nll_loss;
  table.nll_loss_backward = nll_loss_backward;
  table.mse_loss = loss_of_elements<SquaredError>;
  table.mse_loss_backward = gradients_of_elements<SquaredError>;
  table.l1_loss = loss_of_elements<AbsoluteError>;
  table.l1_loss_backward = gradients_of_elements<AbsoluteError>;
  table.binary_cross_entropy_with_logits = loss_of_elements<BinaryCrossEntropy>;
  table.binary_cross_entropy_with_logits_backward = gradients_of_elements<BinaryCrossEntropy>;
  table.l2_loss = l2_loss;
}

}  // namespace lockstep::reference
