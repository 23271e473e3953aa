// Losses are float32.
#include <cmath>

#include "tests/kernels/cases/cases.h"
#include "tests/kernels/cases/shapes.h"

namespace lockstep::testing::cases {

namespace {

constexpr Bound kCloseLoss{.largest = 1e-5F, .absolute = 1e-6F};

std::vector<std::int64_t> labels_for(Index batch, Index classes) {
  std::vector<std::int64_t> labels(static_cast<std::size_t>(batch));
  for (std::size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<std::int64_t>(i * 7) % classes;
  return labels;
}

struct Softmax {
  InputView logits, labels;
  OutputView loss, probabilities;
};

Softmax operands(Bench& b, Index batch, Index classes, std::vector<std::int64_t> labels, float offset = 0) {
  Floats logits = uniform(batch * classes, 1);
  for (float& logit : logits) logit = logit * 30 + offset;
  const InputView in = b.in({batch, classes}, std::move(logits)), targets = b.labels_in(labels);
  const OutputView loss = b.out({}, {7});
  return {in, targets, loss, b.out({batch, classes}, uniform(batch * classes, 3))};
}

Work forward(const CrossEntropyParams& params, Index batch, Index classes, const std::vector<std::int64_t>& labels, float offset = 0) {
  return [=](Bench& b) {
    const Softmax of = operands(b, batch, classes, labels, offset);
    return [=, &b] { b.kernels.softmax_cross_entropy(params, of.logits, of.labels, of.loss, of.probabilities, b.stream()); };
  };
}

enum class Repeat { kBackward, kBoth };

Work backward(const CrossEntropyParams& params, Index batch, Index classes, const std::vector<std::int64_t>& labels, bool accumulate,
              Repeat repeat = Repeat::kBackward) {
  return [=](Bench& b) {
    const Softmax of = operands(b, batch, classes, labels);
    const InputView loss_grad = b.in({}, {0.5F});
    const OutputView grad = b.out({batch, classes}, uniform(batch * classes, 2), accumulate);
    const auto compute = [=, &b] { b.kernels.softmax_cross_entropy(params, of.logits, of.labels, of.loss, of.probabilities, b.stream()); };
    compute();
    return [=, &b] {
      if (repeat == Repeat::kBoth) compute();
      b.kernels.softmax_cross_entropy_backward(params, of.probabilities, of.labels, loss_grad, grad, b.stream());
    };
  };
}

using OfLogits = std::function<void(const std::string& name, Index batch, Index classes, const std::vector<std::int64_t>& labels)>;

void for_all_logits(const OfLogits& visit, const std::vector<Index>& batches = {1, 2, 13, 128, 1031}) {
  for (const Index batch : batches)
    for (const Index classes : {1, 2, 10, 33, 1000})
      visit(fmt::format("{} rows of {} classes", batch, classes), batch, classes, labels_for(batch, classes));
  visit("a label outside", 3, 10, {3, 10, 9});  // loss and gradients are NaN
  visit("a label below 0", 3, 10, {-1, 0, 9});
  visit("no rows", 0, 10, {});
}

using OfCrossEntropy = std::function<void(const CrossEntropyParams& params, const std::string& name, Index batch, Index classes,
                                          const std::vector<std::int64_t>& labels)>;

void for_all_cross_entropies(const OfCrossEntropy& visit) {
  const auto with = [&](const CrossEntropyParams& params) {
    return [&visit, params](const std::string& name, Index batch, Index classes, const std::vector<std::int64_t>& labels) {
      visit(params, fmt::format("{}, smoothing {}, {}", name, params.label_smoothing, params.mean ? "mean" : "sum"), batch, classes,
            labels);
    };
  };
  for_all_logits(with({}));
  for (const CrossEntropyParams& params : {CrossEntropyParams{0, false}, CrossEntropyParams{0.1F, true}, CrossEntropyParams{1, false}})
    for_all_logits(with(params), {1, 13});
}

// x and target of a loss that is a sum over elements; some elements of x are equal to the target's, and large ones of both signs.
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
        cases.test(fmt::format("{} elements, mean {}, NaN {}", count, mean, with_nan), {kCloseLoss}, on(count, mean, with_nan));
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
      const OutputView target_grad = (wanted & kOfTarget) != 0 ? b.out({count}, uniform(count, 4), accumulate) : OutputView();
      return [=, &b] { (b.kernels.*entry)(of.x, of.target, loss_grad, mean, x_grad, target_grad, b.stream()); };
    };
  };
  for (const Index count : kCounts)
    for (const bool flag : {false, true})
      for (const Wanted wanted : {kOfX, kOfTarget, kOfBoth})
        cases.test(fmt::format("{} elements, {}, {}", count, flag, static_cast<int>(wanted)), {{.value = 2e-6F, .absolute = 1e-6F}},
                   on(count, flag, flag == (wanted == kOfX), wanted, flag));
  cases.large_row(name + " backward", 12, on(cases.sizes.elements, true, false, kOfX, false));
}

}  // namespace

void softmax_cross_entropy(Cases& cases) {
  if (cases.is_half()) return;
  for_all_cross_entropies(
      [&](const CrossEntropyParams& params, const std::string& name, Index batch, Index classes, const std::vector<std::int64_t>& labels) {
        cases.test(name, {kCloseLoss}, forward(params, batch, classes, labels));
      });
  for (const float offset : {1e4F, 1e6F, -1e7F})
    for (const float smoothing : {0.0F, 0.1F, 1.0F})
      cases.test(fmt::format("logits near {}, smoothing {}", offset, smoothing), {kCloseLoss},
                 forward({smoothing, true}, 13, 33, labels_for(13, 33), offset));
  const Index batch = cases.sizes.batch;
  cases.row({.name = "cross entropy"}, backward({}, batch, 10, labels_for(batch, 10), false, Repeat::kBoth));  // with its gradient
  // Logits, probabilities and gradients: read or written once, but for the probabilities, which are both.
  cases.row({.name = "cross entropy, 50257 classes", .bytes = 4 * 4 * 64.0 * 50257},
            backward({}, 64, 50257, labels_for(64, 50257), false, Repeat::kBoth));
}

void softmax_cross_entropy_backward(Cases& cases) {
  if (cases.is_half()) return;
  for_all_cross_entropies(
      [&](const CrossEntropyParams& params, const std::string& name, Index batch, Index classes, const std::vector<std::int64_t>& labels) {
        cases.test(name, {kCloseLoss}, backward(params, batch, classes, labels, batch % 2 == 1));
      });
  const Index batch = cases.sizes.batch;
  cases.row({.name = "cross entropy backward"}, backward({}, batch, 10, labels_for(batch, 10), false));
}

void nll_loss(Cases& cases) {
  if (cases.is_half()) return;
  const auto on = [](Index batch, Index classes, const std::vector<std::int64_t>& labels, bool mean) {
    return [=](Bench& b) {
      const InputView in = b.in({batch, classes}, uniform(batch * classes, 1)), targets = b.labels_in(labels);
      const OutputView loss = b.out({}, {7});
      return [=, &b] { b.kernels.nll_loss(in, targets, mean, loss, b.stream()); };
    };
  };
  for_all_logits([&](const std::string& name, Index batch, Index classes, const std::vector<std::int64_t>& labels) {
    for (const bool mean : {false, true})
      cases.test(fmt::format("{}, mean {}", name, mean), {kCloseLoss}, on(batch, classes, labels, mean));
  });
  const Index batch = cases.sizes.batch;
  cases.row({.name = "negative log likelihood"}, on(batch, 10, labels_for(batch, 10), true));
}

void nll_loss_backward(Cases& cases) {
  if (cases.is_half()) return;
  const auto on = [](Index batch, Index classes, const std::vector<std::int64_t>& labels, bool mean, bool accumulate) {
    return [=](Bench& b) {
      const InputView targets = b.labels_in(labels), loss_grad = b.in({}, {0.5F});
      const OutputView grad = b.out({batch, classes}, uniform(batch * classes, 1), accumulate);
      return [=, &b] { b.kernels.nll_loss_backward(targets, loss_grad, mean, grad, b.stream()); };
    };
  };
  for_all_logits([&](const std::string& name, Index batch, Index classes, const std::vector<std::int64_t>& labels) {
    for (const bool flag : {false, true})
      cases.test(fmt::format("{}, {}", name, flag), {kCloseLoss}, on(batch, classes, labels, flag, flag == (batch == 2)));
  });
  const Index batch = cases.sizes.batch;
  cases.row({.name = "negative log likelihood backward"}, on(batch, 10, labels_for(batch, 10), true, false));
}

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
