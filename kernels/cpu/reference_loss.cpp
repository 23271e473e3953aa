// Losses that are sums over elements of x and target.
#include <cmath>

#include "kernels/cpu/reference.h"

namespace lockstep::reference {

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

}  // namespace lockstep::reference
