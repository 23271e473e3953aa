#include "kernels/cases/cases.h"
#include "kernels/cases/shapes.h"
#include "kernels/cases/timed_layers.h"

namespace lockstep::testing::cases {

namespace {

using OfRows = std::function<void(Index rows, Index channels)>;

void for_all_rows(const Cases& cases, const OfRows& visit) {
  for (const Index rows : {0, 1, 3, 4, 257, 1030, 40001})
    for (const Index channels : {1, 3, 5, 64, 70})
      if (rows <= 10000 || (channels <= 5 && !cases.is_half())) visit(rows, channels);  // several parts of the rows
}

Work add_bias(Index rows, Index channels) {
  return [=](Bench& b) {
    const OutputView y = b.out({rows, channels}, uniform(rows * channels, 1));
    const InputView bias = b.in({channels}, uniform(channels, 2));
    return [=, &b] { b.kernels.bias(y, bias, b.stream()); };
  };
}

Work sum_rows(Index rows, Index channels, bool accumulate) {
  return [=](Bench& b) {
    const InputView y_grad = b.in({rows, channels}, uniform(rows * channels, 3));
    const OutputView bias_grad = b.floats_out({channels}, uniform(channels, 4), accumulate, Place::kOneElementOff);
    return [=, &b] { b.kernels.bias_backward(y_grad, bias_grad, b.stream()); };
  };
}

}  // namespace

void bias(Cases& cases) {
  for_all_rows(cases, [&](Index rows, Index channels) {
    cases.test(fmt::format("{} rows of {}", rows, channels), {kExact}, add_bias(rows, channels));
  });
  const Index rows = cases.sizes.elements / 64;
  cases.large_row("bias", 2 * cases.element_bytes(), add_bias(rows, 64));
}

void bias_backward(Cases& cases) {
  for_all_rows(cases, [&](Index rows, Index channels) {
    for (const bool accumulate : {false, true})
      cases.test(fmt::format("{} rows of {}, {}", rows, channels, accumulate), {kSums},
                 sum_rows(rows, channels, accumulate));
  });
  for (const auto& [name, s] : linear_layers(cases.sizes.batch, cases.sizes.side))
    cases.row(
        {.name = name + " backward bias", .bytes = cases.element_bytes() * static_cast<double>(y_shape(s).count())},
        sum_rows(s.batch, s.out_features, false));
}

}  // namespace lockstep::testing::cases
