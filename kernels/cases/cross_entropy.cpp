// Cross entropies of rows: with labels and with soft targets, with and without class weights.
#include <array>
#include <cmath>
#include <limits>
#include <span>

#include "kernels/cases/cases.h"
#include "kernels/cases/shapes.h"

namespace lockstep::testing::cases {

namespace {

constexpr Bound kCloseRows{.largest = 1e-5F, .absolute = 1e-6F};
// The same for a gradient, which is rounded once.
Bound close_gradients(DType type) {
  return is_half(type) ? Bound{.value = step_of(type), .largest = 1e-5F, .absolute = 1e-6F} : kCloseRows;
}

using Labels = std::vector<std::int64_t>;

Labels labels_for(Index batch, Index classes) {
  Labels labels(static_cast<std::size_t>(batch));
  for (std::size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<std::int64_t>(i * 7) % classes;
  return labels;
}

// The rows of scores and their targets: soft targets if there are no labels.
struct ScoredRows {
  Index batch, classes;
  Labels labels;
  bool weighted = false;
  CrossEntropyParams params = {};

  InputView targets(Bench& b) const {
    if (!labels.empty() || batch == 0) return b.labels_in(labels);
    Floats soft = uniform(batch * classes, 5);
    for (float& target : soft) target = target < 0 ? 0 : target;  // half of them do not count
    return b.floats_in({batch, classes}, std::move(soft));
  }
  InputView weight(Bench& b) const {
    if (!weighted) return {};
    Floats weights = uniform(classes, 6);
    for (float& each : weights) each = std::abs(each);
    return b.floats_in({classes}, std::move(weights));
  }
  Shape loss() const { return params.reduction == Reduction::kNone ? Shape{batch} : Shape{}; }
  InputView loss_grad(Bench& b) const {
    return b.floats_in(loss(), params.reduction == Reduction::kNone ? uniform(batch, 7) : Floats{0.5F});
  }
  OutputView loss_out(Bench& b) const {
    return b.floats_out(loss(), Floats(static_cast<std::size_t>(loss().count()), 7));
  }
  OutputView divisor(Bench& b) const {
    return params.reduction == Reduction::kMean ? b.floats_out({}, {7}) : OutputView();
  }
};

struct SoftmaxOfRows {
  InputView logits, targets, weight;
  OutputView loss, divisor, statistics;
};

SoftmaxOfRows operands(Bench& b, const ScoredRows& rows, float offset = 0, Place place = Place::kAligned) {
  Floats logits = uniform(rows.batch * rows.classes, 1);
  for (float& logit : logits) logit = logit * 30 + offset;
  const InputView in = b.in({rows.batch, rows.classes}, std::move(logits), place), targets = rows.targets(b),
                  weight = rows.weight(b);
  const OutputView loss = rows.loss_out(b), divisor = rows.divisor(b);
  return {in, targets, weight, loss, divisor, b.floats_out({rows.batch, 2}, uniform(rows.batch * 2, 3))};
}

// Rows with infinite logits and NaN, among others; the last one is ignored, and class 0 has no weight.
constexpr Index kSpecialRows = 7;
Floats special_logits(Index classes) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  Floats logits = uniform(kSpecialRows * classes, 1);
  const auto at = [&](Index row, Index k) -> float& { return logits[static_cast<std::size_t>(row * classes + k)]; };
  for (Index k = 0; k < classes; ++k) {
    if (k < 20) at(0, k) = -kInfinity;
    if (k != 21) at(1, k) = -kInfinity;
    at(4, k) = -kInfinity;
  }
  at(2, 7) = kInfinity;
  at(3, 5) = at(5, 6) = at(6, 8) = kNan;
  return logits;
}

ScoredRows special_rows(Index classes, bool weighted, float smoothing) {
  Labels labels = {21, 21, 3, 4, 5, 0, kIgnoreIndex};
  return {kSpecialRows, classes, std::move(labels), weighted, {smoothing, Reduction::kNone}};
}

Work special(const ScoredRows& rows, Place place, bool is_backward) {
  return [=](Bench& b) {
    const InputView logits = b.in({rows.batch, rows.classes}, special_logits(rows.classes), place),
                    targets = rows.targets(b);
    Floats weights(static_cast<std::size_t>(rows.classes), 0.5F);
    weights[0] = 0;
    const InputView weight = rows.weighted ? b.floats_in({rows.classes}, std::move(weights)) : InputView();
    const OutputView loss = rows.loss_out(b), statistics = b.floats_out({rows.batch, 2}, uniform(rows.batch * 2, 3));
    const InputView loss_grad = rows.loss_grad(b);
    const OutputView grad = b.out({rows.batch, rows.classes}, uniform(rows.batch * rows.classes, 2), false, place);
    return [=, &b] {
      b.kernels.softmax_cross_entropy(rows.params, logits, targets, weight, loss, {}, statistics, b.stream());
      if (is_backward)
        b.kernels.softmax_cross_entropy_backward(rows.params, logits, statistics, targets, weight, {}, loss_grad, grad,
                                                 b.stream());
    };
  };
}

void test_special_rows(Cases& cases, const Bound& bound, bool is_backward) {
  for (const Index classes : {33, 2000})
    for (const bool weighted : {false, true})
      for (const float smoothing : {0.0F, 0.1F})
        for (const Place place : {Place::kAligned, Place::kOneElementOff})
          cases.test(fmt::format("infinite logits and NaN, {} classes, weighted {}, smoothing {}, {}", classes,
                                 weighted, smoothing, place == Place::kAligned ? "aligned" : "off"),
                     {bound}, special(special_rows(classes, weighted, smoothing), place, is_backward));
}

Work forward(const ScoredRows& rows, float offset = 0, Place place = Place::kAligned) {
  return [=](Bench& b) {
    const SoftmaxOfRows of = operands(b, rows, offset, place);
    return [=, &b] {
      b.kernels.softmax_cross_entropy(rows.params, of.logits, of.targets, of.weight, of.loss, of.divisor, of.statistics,
                                      b.stream());
    };
  };
}

enum class Repeat { kBackward, kBoth };

Work backward(const ScoredRows& rows, bool accumulate, Repeat repeat = Repeat::kBackward,
              Place place = Place::kAligned) {
  return [=](Bench& b) {
    const SoftmaxOfRows of = operands(b, rows, 0, place);
    const InputView loss_grad = rows.loss_grad(b);
    const OutputView grad = b.out({rows.batch, rows.classes}, uniform(rows.batch * rows.classes, 2), accumulate);
    const auto compute = [=, &b] {
      b.kernels.softmax_cross_entropy(rows.params, of.logits, of.targets, of.weight, of.loss, of.divisor, of.statistics,
                                      b.stream());
    };
    compute();
    return [=, &b] {
      if (repeat == Repeat::kBoth) compute();
      b.kernels.softmax_cross_entropy_backward(rows.params, of.logits, of.statistics, of.targets, of.weight, of.divisor,
                                               loss_grad, grad, b.stream());
    };
  };
}

using OfScoredRows = std::function<void(const std::string& name, const ScoredRows& rows)>;

const char* name_of(Reduction reduction) {
  return reduction == Reduction::kMean ? "mean" : reduction == Reduction::kSum ? "sum" : "none";
}

constexpr Index kBatches[] = {1, 2, 13, 128, 1031}, kClassCounts[] = {1, 2, 10, 33, 1000},
                kFewClassCounts[] = {1, 10, 33};

void for_all_labels(const OfScoredRows& visit, std::span<const Index> batches, std::span<const Index> class_counts,
                    const CrossEntropyParams& params, bool weighted) {
  const auto with = [&](const std::string& name, Index batch, Index classes, const Labels& labels) {
    visit(fmt::format("{}, smoothing {}, {}{}", name, params.label_smoothing, name_of(params.reduction),
                      weighted ? ", weighted" : ""),
          {batch, classes, labels, weighted, params});
  };
  for (const Index batch : batches)
    for (const Index classes : class_counts)
      with(fmt::format("{} rows of {} classes", batch, classes), batch, classes, labels_for(batch, classes));
  with("a label outside", 3, 10, {3, 10, 9});  // loss and gradients are NaN
  with("a label below 0", 3, 10, {-1, 0, 9});
  const Index ignored = params.ignore_index;
  with("rows that are ignored", 5, 33, {ignored, 0, 9, ignored, 3});
  with("all rows ignored", 3, 10, {ignored, ignored, ignored});
  with("no rows", 0, 10, {});
}

void for_all_reductions(const OfScoredRows& visit, float smoothing, bool weighted) {
  for (const Reduction reduction : {Reduction::kMean, Reduction::kSum, Reduction::kNone})
    for (const std::int64_t ignored : {kIgnoreIndex, std::int64_t{4}})
      for_all_labels(visit, std::array<Index, 1>{13}, kFewClassCounts, {smoothing, reduction, ignored}, weighted);
}

void for_all_soft_targets(const OfScoredRows& visit) {
  for (const Reduction reduction : {Reduction::kMean, Reduction::kSum, Reduction::kNone})
    for (const float smoothing : {0.0F, 0.1F})
      for (const bool weighted : {false, true})
        for (const Index classes : kFewClassCounts)
          visit(fmt::format("soft targets of {} classes, smoothing {}, {}, weighted {}", classes, smoothing,
                            name_of(reduction), weighted),
                {13, classes, {}, weighted, {smoothing, reduction}});
}

void for_all_cross_entropies(const OfScoredRows& visit) {
  for_all_labels(visit, kBatches, kClassCounts, {}, false);
  for (const float smoothing : {0.0F, 0.1F})
    for (const bool weighted : {false, true}) for_all_reductions(visit, smoothing, weighted);
  for_all_labels(visit, std::array<Index, 1>{13}, kFewClassCounts, {1, Reduction::kSum}, true);
  for_all_soft_targets(visit);
}

void for_all_nll_losses(const OfScoredRows& visit) {
  for_all_labels(visit, kBatches, kClassCounts, {}, false);
  for (const bool weighted : {false, true}) for_all_reductions(visit, 0, weighted);
}

ScoredRows timed(const Cases& cases) { return {cases.sizes.batch, 10, labels_for(cases.sizes.batch, 10)}; }

}  // namespace

// Rows that a GPU's block shares, whose first elements are at different distances from 16 bytes.
std::vector<ScoredRows> long_rows() {
  return {{3, 1031, labels_for(3, 1031)}, {2, 5000, labels_for(2, 5000), true, {0.1F, Reduction::kSum}}};
}

void softmax_cross_entropy(Cases& cases) {
  for_all_cross_entropies([&](const std::string& name, const ScoredRows& rows) {
    if (!cases.is_half() || rows.batch < 128) cases.test(name, {kCloseRows}, forward(rows));
  });
  for (const Place place : {Place::kAligned, Place::kOneElementOff})
    for (const ScoredRows& rows : long_rows())
      cases.test(
          fmt::format("{} rows of {}, {}", rows.batch, rows.classes, place == Place::kAligned ? "aligned" : "off"),
          {kCloseRows}, forward(rows, 0, place));
  test_special_rows(cases, kCloseRows, false);
  for (const float offset : {1e4F, 1e6F, -1e7F})
    for (const float smoothing : {0.0F, 0.1F, 1.0F})
      if (!cases.is_half())
        cases.test(fmt::format("logits near {}, smoothing {}", offset, smoothing), {kCloseRows},
                   forward({13, 33, labels_for(13, 33), false, {smoothing}}, offset));
  cases.row({.name = "cross entropy"}, backward(timed(cases), false, Repeat::kBoth));  // with its gradient
}

void softmax_cross_entropy_backward(Cases& cases) {
  const Bound bound = close_gradients(cases.type);
  for_all_cross_entropies([&](const std::string& name, const ScoredRows& rows) {
    if (!cases.is_half() || rows.batch < 128) cases.test(name, {bound}, backward(rows, rows.batch % 2 == 1));
  });
  for (const Place place : {Place::kAligned, Place::kOneElementOff})
    for (const ScoredRows& rows : long_rows())
      for (const bool accumulate : {false, true})
        cases.test(fmt::format("{} rows of {}, {}, {}", rows.batch, rows.classes,
                               place == Place::kAligned ? "aligned" : "off", accumulate),
                   {bound}, backward(rows, accumulate, Repeat::kBackward, place));
  test_special_rows(cases, bound, true);
  cases.row({.name = "cross entropy backward"}, backward(timed(cases), false));
}

void nll_loss(Cases& cases) {
  if (cases.is_half()) return;
  const auto on = [](const ScoredRows& rows) {
    return [=](Bench& b) {
      const InputView in = b.in({rows.batch, rows.classes}, uniform(rows.batch * rows.classes, 1)),
                      targets = rows.targets(b);
      const InputView weight = rows.weight(b);
      const OutputView loss = rows.loss_out(b), divisor = rows.divisor(b);
      return [=, &b] { b.kernels.nll_loss(rows.params, in, targets, weight, loss, divisor, b.stream()); };
    };
  };
  for_all_nll_losses(
      [&](const std::string& name, const ScoredRows& rows) { cases.test(name, {kCloseRows}, on(rows)); });
  cases.row({.name = "negative log likelihood"}, on(timed(cases)));
}

void nll_loss_backward(Cases& cases) {
  if (cases.is_half()) return;
  const auto on = [](const ScoredRows& rows, bool accumulate) {
    return [=](Bench& b) {
      const InputView targets = rows.targets(b), weight = rows.weight(b), loss_grad = rows.loss_grad(b);
      const InputView divisor = rows.params.reduction == Reduction::kMean ? b.in({}, {13}) : InputView();
      const OutputView grad = b.out({rows.batch, rows.classes}, uniform(rows.batch * rows.classes, 1), accumulate);
      return
          [=, &b] { b.kernels.nll_loss_backward(rows.params, targets, weight, divisor, loss_grad, grad, b.stream()); };
    };
  };
  for_all_nll_losses([&](const std::string& name, const ScoredRows& rows) {
    for (const bool accumulate : {false, true})
      cases.test(fmt::format("{}, {}", name, accumulate), {kCloseRows}, on(rows, accumulate));
  });
  cases.row({.name = "negative log likelihood backward"}, on(timed(cases), false));
}

}  // namespace lockstep::testing::cases
