#include <limits>

#include "kernels/cases/cases.h"

namespace lockstep::testing::cases {

namespace {

using OfSoftmax = std::function<void(Index rows, Index channels, bool log)>;

void for_all_softmaxes(const OfSoftmax& visit) {
  for (const Index rows : {0, 1, 3, 77})
    for (const Index channels : {0, 1, 3, 16, 33, 300})
      for (const bool log : {false, true}) visit(rows, channels, log);
}

std::string text(Index rows, Index channels, bool log) {
  return fmt::format("{} rows of {}{}", rows, channels, log ? ", log" : "");
}

Work softmax_forward(Index rows, Index channels, bool log, float broken = 0) {
  return [=](Bench& b) {
    Floats values = uniform(rows * channels, 1);
    for (float& value : values) value *= 20;
    if (broken != 0) values[static_cast<std::size_t>(channels / 2)] = broken;
    const InputView x = b.in({rows, channels}, values);
    const OutputView y = b.out({rows, channels}, uniform(rows * channels, 2));
    return [=, &b] { b.kernels.softmax(x, log, y, b.stream()); };
  };
}

Work softmax_rows_backward(Index rows, Index channels, bool log, bool accumulate) {
  return [=](Bench& b) {
    Floats values = uniform(rows * channels, 1);
    for (float& value : values) value = log ? 4 * value - 4 : value;
    const InputView y = b.in({rows, channels}, values), y_grad = b.in({rows, channels}, uniform(rows * channels, 2));
    const OutputView x_grad = b.out({rows, channels}, uniform(rows * channels, 3), accumulate);
    return [=, &b] { b.kernels.softmax_backward(y, y_grad, log, x_grad, b.stream()); };
  };
}

Bound softmax_bound(const Cases& cases, float absolute) {
  return {.value = 1e-5F + (cases.is_half() ? step_of(cases.type) : 0),
          .absolute = absolute + (cases.is_half() ? 0x1p-23F : 0)};
}

}  // namespace

void softmax(Cases& cases) {
  for_all_softmaxes([&](Index rows, Index channels, bool log) {
    cases.test(text(rows, channels, log), {softmax_bound(cases, log ? 1e-5F : 1e-7F)},
               softmax_forward(rows, channels, log));
  });
  for (const float broken : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()})
    for (const bool log : {false, true})
      cases.test(fmt::format("{} in a row, {}", broken, log), {softmax_bound(cases, 1e-5F)},
                 softmax_forward(2, 40, log, broken));
  // For equal logits the result is -log(channels), whatever they are: large ones must not reduce its precision.
  for (const float offset : {1e4F, 1e6F, -1e8F})
    if (!cases.is_half())
      cases.test(fmt::format("log, equal logits of {}", offset), {{.value = 2e-7F}}, [=](Bench& b) {
        const InputView x = b.in({3, 40}, Floats(120, offset));
        const OutputView y = b.out({3, 40}, uniform(120, 2));
        return [=, &b] { b.kernels.softmax(x, true, y, b.stream()); };
      });
  cases.large_row("softmax", 2 * cases.element_bytes(), softmax_forward(cases.sizes.elements / 256, 256, false));
  cases.large_row("log softmax", 2 * cases.element_bytes(), softmax_forward(cases.sizes.elements / 256, 256, true));
}

void softmax_backward(Cases& cases) {
  for_all_softmaxes([&](Index rows, Index channels, bool log) {
    for (const bool accumulate : {false, true})
      cases.test(fmt::format("{}, {}", text(rows, channels, log), accumulate),
                 {{.value = 1e-5F + (cases.is_half() ? step_of(cases.type) : 0),
                   .largest = 1e-5F,
                   .absolute = 1e-6F + (cases.is_half() ? 2 * step_of(cases.type) : 0)}},
                 softmax_rows_backward(rows, channels, log, accumulate));
  });
  cases.large_row("softmax backward", 3 * cases.element_bytes(),
                  softmax_rows_backward(cases.sizes.elements / 256, 256, false, false));
}

}  // namespace lockstep::testing::cases
