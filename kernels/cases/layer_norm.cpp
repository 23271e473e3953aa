#include "kernels/cases/cases.h"

namespace lockstep::testing::cases {

namespace {

struct LayerCase {
  Index rows, channels;
  bool centred, weight, bias;

  std::string name() const {
    return fmt::format("{} rows of {}{}{}{}", rows, channels, centred ? "" : ", rms", weight ? ", weight" : "",
                       bias ? ", bias" : "");
  }
};

std::vector<LayerCase> layer_cases() {
  std::vector<LayerCase> all;
  for (const Index rows : {0, 1, 3, 77})
    for (const Index channels : {0, 1, 3, 16, 33, 70, 300})
      for (const bool centred : {true, false})
        all.push_back({rows, channels, centred, channels != 3, channels != 3 && channels != 16});
  all.push_back({1000, 5, true, true, true});
  return all;
}

// A row of one element has a variance of 0: epsilon keeps its inverse root small enough to compare.
constexpr float kEpsilon = 0.1F;
constexpr Bound kLayerRow{.value = 1e-5F, .largest = 5e-6F, .absolute = 1e-6F};

InputView optional_floats(Bench& b, bool wanted, Index count, unsigned seed) {
  return wanted ? b.floats_in({count}, uniform(count, seed)) : InputView();
}

Work layer_forward(const LayerCase& c) {
  return [=](Bench& b) {
    const Shape shape{c.rows, c.channels};
    const InputView x = b.in(shape, uniform(shape.count(), 1)), weight = optional_floats(b, c.weight, c.channels, 2),
                    bias = optional_floats(b, c.bias, c.channels, 3);
    const OutputView y = b.out(shape, uniform(shape.count(), 4)), rstd = b.floats_out({c.rows}, uniform(c.rows, 5));
    const OutputView mean = c.centred ? b.floats_out({c.rows}, uniform(c.rows, 6)) : OutputView();
    return [=, &b] { b.kernels.layer_norm(x, weight, bias, kEpsilon, y, mean, rstd, b.stream()); };
  };
}

Work sum_forward(const LayerCase& c, Place place) {
  return [=](Bench& b) {
    const Shape shape{c.rows, c.channels};
    const InputView a = b.in(shape, uniform(shape.count(), 1), place),
                    addend = b.in(shape, uniform(shape.count(), 7), place),
                    weight = optional_floats(b, c.weight, c.channels, 2),
                    bias = optional_floats(b, c.bias, c.channels, 3);
    const OutputView sum = b.out(shape, uniform(shape.count(), 8), false, place),
                     y = b.out(shape, uniform(shape.count(), 4), false, place),
                     rstd = b.floats_out({c.rows}, uniform(c.rows, 5));
    const OutputView mean = c.centred ? b.floats_out({c.rows}, uniform(c.rows, 6)) : OutputView();
    return [=, &b] { b.kernels.add_layer_norm(a, addend, weight, bias, kEpsilon, sum, y, mean, rstd, b.stream()); };
  };
}

// Uses statistics that are not from a forward pass: they are ordinary operands.
Work layer_backward(const LayerCase& c, bool accumulate) {
  return [=](Bench& b) {
    const Shape shape{c.rows, c.channels};
    const InputView x = b.in(shape, uniform(shape.count(), 1)), weight = optional_floats(b, c.weight, c.channels, 2),
                    mean = optional_floats(b, c.centred, c.rows, 3), rstd = b.floats_in({c.rows}, uniform(c.rows, 4)),
                    y_grad = b.in(shape, uniform(shape.count(), 5));
    const OutputView x_grad = b.out(shape, uniform(shape.count(), 6), accumulate);
    const OutputView weight_grad =
        b.floats_out({c.channels}, uniform(c.channels, 7), accumulate, Place::kOneElementOff);
    const OutputView bias_grad = b.floats_out({c.channels}, uniform(c.channels, 8), !accumulate, Place::kOneElementOff);
    return [=, &b] {
      b.kernels.layer_norm_backward(x, weight, mean, rstd, y_grad, x_grad, c.weight ? weight_grad : OutputView(),
                                    c.bias ? bias_grad : OutputView(), b.stream());
    };
  };
}

Bound layer_bound(const Cases& cases, Bound bound, bool accumulate) {
  if (cases.is_half())
    bound.value += step_of(cases.type), bound.absolute += accumulate ? 2 * step_of(cases.type) : 0x1p-23F;
  return bound;
}

LayerCase large_layer(const Cases& cases) { return {cases.sizes.elements / 256, 256, true, true, true}; }

}  // namespace

void layer_norm(Cases& cases) {
  for (const LayerCase& c : layer_cases())
    cases.test(c.name(), {layer_bound(cases, kLayerRow, false), kLayerRow}, layer_forward(c));
  cases.large_row("layer norm", 2 * cases.element_bytes(), layer_forward(large_layer(cases)));
}

void add_layer_norm(Cases& cases) {
  for (const LayerCase& c : layer_cases())
    for (const Place place : {Place::kAligned, Place::kOneElementOff})
      cases.test(fmt::format("{}, {}", c.name(), place == Place::kAligned ? "aligned" : "off"),
                 {kExact, layer_bound(cases, kLayerRow, false), kLayerRow}, sum_forward(c, place));
  cases.large_row("add and layer norm", 4 * cases.element_bytes(), sum_forward(large_layer(cases), Place::kAligned));
}

void layer_norm_backward(Cases& cases) {
  constexpr Bound kColumns{.products = 2e-5F, .largest = 1e-5F, .absolute = 1e-5F};
  for (const LayerCase& c : layer_cases())
    for (const bool accumulate : {false, true})
      cases.test(c.name(),
                 {layer_bound(cases, {.value = 1e-5F, .largest = 5e-6F, .absolute = 2e-5F}, accumulate), kColumns},
                 layer_backward(c, accumulate));
  cases.large_row("layer norm backward", 3 * cases.element_bytes(), layer_backward(large_layer(cases), false));
}

}  // namespace lockstep::testing::cases
