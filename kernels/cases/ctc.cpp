// CTC: odd sizes, repeated labels, samples without inputs or labels, labels that do not fit, probabilities of 0.
#include <cmath>
#include <limits>

#include "kernels/cases/cases.h"

namespace lockstep::testing::cases {

namespace {

struct CtcCase {
  Index samples, steps, classes, labels;
  Index blank = 0;
  bool with_nan = false;

  std::string name() const {
    return fmt::format("{} samples, {} steps, {} classes, {} labels, blank {}{}", samples, steps, classes, labels,
                       blank, with_nan ? ", NaN" : "");
  }
};

const std::vector<CtcCase> kCtcCases = {{1, 1, 2, 1},       {2, 5, 4, 2, 3},      {3, 1, 3, 2},       {2, 7, 3, 0, 1},
                                        {4, 30, 5, 12},     {2, 150, 9, 70},      {1, 12, 700, 5, 9}, {0, 5, 4, 2},
                                        {1, 2000, 40, 300}, {3, 6, 4, 2, 0, true}};

struct CtcOperands {
  InputView x, labels, lengths;
  OutputView alpha, loss;
};

CtcOperands operands(Bench& b, const CtcCase& c) {
  Floats x = uniform(c.samples * c.steps * c.classes, 1);
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = i % 41 == 7 ? -std::numeric_limits<float>::infinity() : x[i] - std::log(static_cast<float>(c.classes));
  if (c.with_nan) x[4] = kNan;
  std::vector<std::int64_t> labels, lengths;
  for (Index i = 0; i < c.samples * c.labels; ++i) {  // pairs of equal ones
    const std::int64_t label = i / 2 * 5 % (c.classes - 1);
    labels.push_back(label < c.blank ? label : label + 1);
  }
  for (Index n = 0; n < c.samples; ++n) lengths.push_back(n == 2 ? 0 : c.steps - n % 2);
  for (Index n = 0; n < c.samples; ++n) lengths.push_back(n == 1 ? c.labels / 2 : c.labels);
  CtcOperands of{
      b.in({c.samples, c.steps, c.classes}, std::move(x)), b.labels_in(labels), b.labels_in(lengths), {}, {}};
  of.labels.shape = {c.samples, c.labels};
  of.lengths.shape = {2, c.samples};
  const Shape alphas{c.samples, c.steps, 2 * c.labels + 1};
  of.alpha = b.out(alphas, uniform(alphas.count(), 2));
  of.loss = b.out({c.samples}, uniform(c.samples, 3));
  return of;
}

void run_forward(Bench& b, const CtcCase& c, const CtcOperands& of) {
  b.kernels.ctc_loss(c.blank, of.x, of.labels, of.lengths, of.alpha, of.loss, b.stream());
}

Work forward(const CtcCase& c) {
  return [=](Bench& b) {
    const CtcOperands of = operands(b, c);
    return [=, &b] { run_forward(b, c, of); };
  };
}

// On alpha and losses from a forward pass.
Work backward(const CtcCase& c, bool accumulate) {
  return [=](Bench& b) {
    const CtcOperands of = operands(b, c);
    run_forward(b, c, of);
    const InputView loss_grad = b.in({c.samples}, uniform(c.samples, 4));
    const OutputView x_grad = b.out(of.x.shape, uniform(of.x.count(), 5), accumulate);
    return [=, &b] {
      b.kernels.ctc_loss_backward(c.blank, of.x, of.labels, of.lengths, of.alpha, of.loss, loss_grad, x_grad,
                                  b.stream());
    };
  };
}

constexpr Bound kAlphas{.value = 1e-5F, .absolute = 1e-4F};
// Logarithms, which are floats, grow with the number of steps, and so does the error of their exponentials.
Bound gradient_bound(const CtcCase& c) {
  const float steps = static_cast<float>(c.steps);
  return {.value = 1e-3F + 2e-6F * steps, .absolute = 1e-4F + 5e-7F * steps};
}

constexpr CtcCase kSpeech{16, 200, 32, 40};
constexpr double kSpeechBytes = 16 * 200 * (32 + 81) * 4;

}  // namespace

void ctc_loss(Cases& cases) {
  if (cases.is_half()) return;
  for (const CtcCase& c : kCtcCases) cases.test(c.name(), {kAlphas, {.value = 1e-5F, .absolute = 1e-5F}}, forward(c));
  cases.row({.name = "ctc loss", .bytes = kSpeechBytes}, forward(kSpeech));
}

void ctc_loss_backward(Cases& cases) {
  if (cases.is_half()) return;
  for (const CtcCase& c : kCtcCases)
    for (const bool accumulate : {false, true})
      cases.test(fmt::format("{}, accumulate {}", c.name(), accumulate),
                 {kAlphas, {.value = 1e-5F, .absolute = 1e-5F}, gradient_bound(c)}, backward(c, accumulate));
  cases.row({.name = "ctc loss backward", .bytes = 2 * kSpeechBytes}, backward(kSpeech, false));
}

}  // namespace lockstep::testing::cases
