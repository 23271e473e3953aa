#include "kernels/cases/cases.h"

namespace lockstep::testing::cases {

namespace {

struct Activations {
  Index rows, channels;
};

// With few channels the CPU processes several rows at a time, with many a GPU uses several blocks; the last row may be
// processed alone.
const std::vector<Activations>& activations() {
  static const std::vector<Activations> kAll = {{1, 1},     {3, 1},   {2, 3},   {257, 5},
                                                {1031, 16}, {40, 64}, {5, 200}, {3000, 33}};
  return kAll;
}

constexpr Activations kEmptyActivations[] = {{0, 3}, {5, 0}, {0, 0}};

std::string rows_text(const Activations& s) { return fmt::format("{} rows of {}", s.rows, s.channels); }

Floats positive(Index count, unsigned seed) {
  Floats values = uniform(count, seed);
  for (float& value : values) value = 0.5F + value * value;
  return values;
}

Work statistics(const Activations& s) {
  return [=](Bench& b) {
    Floats values = uniform(s.rows * s.channels, 1);
    for (float& value : values) value += 3;  // a mean that is larger than the deviation
    const InputView x = b.in({s.rows, s.channels}, std::move(values));
    const OutputView mean = b.floats_out({s.channels}, uniform(s.channels, 2)),
                     variance = b.floats_out({s.channels}, uniform(s.channels, 3));
    return [=, &b] { b.kernels.batch_norm_statistics(x, mean, variance, b.stream()); };
  };
}

// Operands that forward and backward share; without `affine` there is neither weight nor bias.
struct Operands {
  Operands(Bench& b, const Activations& s, bool affine)
      : x(b.in({s.rows, s.channels}, uniform(s.rows * s.channels, 1))),
        mean(b.floats_in({s.channels}, uniform(s.channels, 2))),
        variance(b.floats_in({s.channels}, positive(s.channels, 3))) {
    if (!affine) return;
    weight = b.floats_in({s.channels}, uniform(s.channels, 4), Place::kOneElementOff);
    bias = b.floats_in({s.channels}, uniform(s.channels, 5), Place::kOneElementOff);
  }
  InputView x, mean, variance, weight, bias;
};

Work norm_forward(const Activations& s, bool relu, bool affine) {
  return [=](Bench& b) {
    const Operands of(b, s, affine);
    const OutputView y = b.out({s.rows, s.channels}, uniform(s.rows * s.channels, 6));
    return [=, &b] {
      b.kernels.batch_norm({.relu = relu}, of.x, of.mean, of.variance, of.weight, of.bias, y, b.stream());
    };
  };
}

Work norm_backward(const Activations& s, bool relu, bool affine, bool constant, bool accumulate) {
  return [=](Bench& b) {
    const Operands of(b, s, affine);
    const InputView y_grad = b.in({s.rows, s.channels}, uniform(s.rows * s.channels, 7));
    const OutputView x_grad = b.out({s.rows, s.channels}, uniform(s.rows * s.channels, 8), accumulate);
    OutputView weight_grad, bias_grad;
    if (affine) {
      weight_grad = b.floats_out({s.channels}, uniform(s.channels, 9), accumulate, Place::kOneElementOff);
      bias_grad = b.floats_out({s.channels}, uniform(s.channels, 10), !accumulate, Place::kOneElementOff);
    }
    const BatchNormParams params{.relu = relu, .constant_statistics = constant};
    return [=, &b] {
      b.kernels.batch_norm_backward(params, of.x, y_grad, of.mean, of.variance, of.weight, of.bias, x_grad, weight_grad,
                                    bias_grad, b.stream());
    };
  };
}

// For results that are rounded once, computed from differences and factors of size 1 to 4.
Bound result(const Cases& cases, bool accumulate = false) {
  Bound bound{.value = 2e-6F, .absolute = 2e-5F};
  if (cases.is_half())
    bound = {.value = 2 * step_of(cases.type), .absolute = 2e-5F + (accumulate ? step_of(cases.type) : 0)};
  return bound;
}

double passes(const Cases& cases, double count) {
  return count * cases.element_bytes() * static_cast<double>(cases.sizes.elements);
}

}  // namespace

void batch_norm_statistics(Cases& cases) {
  for (const Activations& s : activations())
    cases.test(rows_text(s), {{.value = 2e-6F}, {.value = 1e-5F, .absolute = 2e-6F}}, statistics(s));
  const Activations large{cases.sizes.elements / 64, 64};
  cases.row({.name = "batch norm statistics", .bytes = passes(cases, 1)}, statistics(large));
}

void batch_norm(Cases& cases) {
  for (const Activations& s : activations())
    for (const bool relu : {false, true})
      for (const bool affine : {false, true})
        cases.test(fmt::format("{}, relu {}, affine {}", rows_text(s), relu, affine), {result(cases)},
                   norm_forward(s, relu, affine));
  for (const Activations& s : kEmptyActivations) cases.test(rows_text(s), {kExact}, norm_forward(s, true, true));
  for (const Index channels : {16, 64})
    cases.row({.name = fmt::format("batch norm + relu, {} channels", channels), .bytes = passes(cases, 2)},
              norm_forward({cases.sizes.elements / channels, channels}, true, true));
}

void batch_norm_backward(Cases& cases) {
  for (const Activations& s : activations())
    for (const bool relu : {false, true})
      for (const bool affine : {false, true})
        for (const bool constant : {false, true})
          cases.test(fmt::format("{}, relu {}, affine {}, constant {}", rows_text(s), relu, affine, constant),
                     {result(cases, constant), {.products = 2e-5F, .absolute = 1e-5F}},
                     norm_backward(s, relu, affine, constant, constant));
  for (const Activations& s : kEmptyActivations)
    for (const bool constant : {false, true})
      for (const bool accumulate : {false, true})
        cases.test(fmt::format("{}, constant {}, {}", rows_text(s), constant, accumulate), {kExact},
                   norm_backward(s, true, true, constant, accumulate));
  for (const Index channels : {16, 64})
    cases.row({.name = fmt::format("batch norm + relu backward, {} channels", channels), .bytes = passes(cases, 5)},
              norm_backward({cases.sizes.elements / channels, channels}, true, true, false, false));
}

}  // namespace lockstep::testing::cases
