// Losses are float32.
#include <cmath>

#include "kernels/cases/cases.h"
#include "kernels/cases/shapes.h"

namespace lockstep::testing::cases {

namespace {

constexpr Bound kCloseLoss{.largest = 1e-5F, .absolute = 1e-6F};

// x and target of a loss that is a sum over elements; some elements of x are equal to the target's, and some are large,
// with both signs.
struct Elements {
  InputView x, target;
};
Elements elements_of(Bench& b, Index count, bool with_nan) {
  Floats x = uniform(count, 1), target = uniform(count, 2);
  for (std::size_t i = 0; i < x.size(); ++i) {
    target[i] = std::abs(target[i]);
    if (i % 5 == 1) x[i] = target[i];
    if (i % 7 == 2) x[i] *= 100;
  }
  if (with_nan && count > 3) x[3] = kNan;
  const InputView in = b.in({count}, std::move(x));
  return {in, b.in({count}, std::move(target))};
}

using LossEntry = decltype(KernelTable::mse_loss);
using LossBackwardEntry = decltype(KernelTable::mse_loss_backward);

void add_loss_of_elements(Cases& cases, const std::string& name, LossEntry KernelTable::*entry) {
  if (cases.is_half()) return;
  const auto on = [=](Index count, bool mean, bool with_nan) {
    return [=](Bench& b) {
      const Elements of = elements_of(b, count, with_nan);
      const OutputView loss = b.out({}, {7});
      return [=, &b] { (b.kernels.*entry)(of.x, of.target, mean, loss, b.stream()); };
    };
  };
  for (const Index count : kCounts)
    for (const bool mean : {false, true})
      for (const bool with_nan : {false, true})
        cases.test(fmt::format("{} elements, mean {}, NaN {}", count, mean, with_nan), {kCloseLoss},
                   on(count, mean, with_nan));
  cases.large_row(name, 8, on(cases.sizes.elements, true, false));
}

enum Wanted { kOfX = 1, kOfTarget = 2, kOfBoth = 3 };

void add_gradients_of_elements(Cases& cases, const std::string& name, LossBackwardEntry KernelTable::*entry) {
  if (cases.is_half()) return;
  const auto on = [=](Index count, bool mean, bool accumulate, Wanted wanted, bool with_nan) {
    return [=](Bench& b) {
      const Elements of = elements_of(b, count, with_nan);
      const InputView loss_grad = b.in({}, {0.5F});
      const OutputView x_grad = (wanted & kOfX) != 0 ? b.out({count}, uniform(count, 3), accumulate) : OutputView();
      const OutputView target_grad =
          (wanted & kOfTarget) != 0 ? b.out({count}, uniform(count, 4), accumulate) : OutputView();
      return [=, &b] { (b.kernels.*entry)(of.x, of.target, loss_grad, mean, x_grad, target_grad, b.stream()); };
    };
  };
  for (const Index count : kCounts)
    for (const bool flag : {false, true})
      for (const Wanted wanted : {kOfX, kOfTarget, kOfBoth})
        cases.test(fmt::format("{} elements, {}, {}", count, flag, static_cast<int>(wanted)),
                   {{.value = 2e-6F, .absolute = 1e-6F}}, on(count, flag, flag == (wanted == kOfX), wanted, flag));
  cases.large_row(name + " backward", 12, on(cases.sizes.elements, true, false, kOfX, false));
}

}  // namespace

void mse_loss(Cases& cases) { add_loss_of_elements(cases, "mse loss", &KernelTable::mse_loss); }
void mse_loss_backward(Cases& cases) { add_gradients_of_elements(cases, "mse loss", &KernelTable::mse_loss_backward); }
void l1_loss(Cases& cases) { add_loss_of_elements(cases, "l1 loss", &KernelTable::l1_loss); }
void l1_loss_backward(Cases& cases) { add_gradients_of_elements(cases, "l1 loss", &KernelTable::l1_loss_backward); }
void binary_cross_entropy_with_logits(Cases& cases) {
  add_loss_of_elements(cases, "binary cross entropy", &KernelTable::binary_cross_entropy_with_logits);
}
void binary_cross_entropy_with_logits_backward(Cases& cases) {
  add_gradients_of_elements(cases, "binary cross entropy", &KernelTable::binary_cross_entropy_with_logits_backward);
}

void l2_loss(Cases& cases) {
  if (cases.is_half()) return;
  const auto on = [](Index count) {
    return [=](Bench& b) {
      const InputView x = b.in({count}, uniform(count, 1));
      const OutputView loss = b.out({}, {7});
      return [=, &b] { b.kernels.l2_loss(x, loss, b.stream()); };
    };
  };
  for (const Index count : kCounts) cases.test(fmt::format("{} elements", count), {kSums}, on(count));
  cases.large_row("l2 loss", 4, on(cases.sizes.elements));
}

}  // namespace lockstep::testing::cases
