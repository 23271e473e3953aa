// Sums over any dimensions, extremes with their positions, products.
#include <limits>

#include "kernels/cases/cases.h"

namespace lockstep::testing::cases {

namespace {

struct Reduction {
  Shape x, y;
};

const std::vector<Reduction>& reductions() {
  static const std::vector<Reduction> kReductions = {{{}, {}},
                                                     {{7}, {7}},
                                                     {{7}, {1}},
                                                     {{0}, {}},
                                                     {{0, 3}, {1, 3}},
                                                     {{3, 0}, {3, 1}},
                                                     {{3, 0}, {1, 0}},
                                                     {{1003, 10}, {1003, 1}},
                                                     {{5, 3001}, {5, 1}},
                                                     {{3, 40001}, {3, 1}},
                                                     {{140001}, {}},
                                                     {{3001, 5}, {5}},
                                                     {{257, 70}, {1, 70}},
                                                     {{40, 33, 7}, {40, 1, 7}},
                                                     {{9, 20, 130}, {1, 20, 1}},
                                                     {{9, 20, 130}, {9, 1, 1}},
                                                     {{2, 3, 4, 5, 6, 7}, {1, 3, 1, 5, 1, 7}},
                                                     {{2, 3, 4, 5, 6, 7}, {2, 1, 4, 1, 6, 1}}};
  return kReductions;
}

Work add_up(const Reduction& of, bool accumulate, bool to_floats) {
  return [=](Bench& b) {
    const InputView x = b.in(of.x, uniform(of.x.count(), 1));
    const Floats before = uniform(of.y.count(), 2);
    const OutputView y = to_floats ? b.floats_out(of.y, before, accumulate) : b.out(of.y, before, accumulate);
    return [=, &b] { b.kernels.sum(x, 0.75F, y, b.stream()); };
  };
}

enum class Contents { kNumbers, kWithNan };

using Extreme = decltype(KernelTable::max);

Work extreme(Extreme KernelTable::*kernel, const Shape& x_shape, Contents contents) {
  return [=](Bench& b) {
    Floats values = whole_numbers(x_shape.count(), 1);  // many of them equal
    if (contents == Contents::kWithNan)
      for (std::size_t i = 0; i < values.size(); i += 37) values[i] = std::numeric_limits<float>::quiet_NaN();
    const InputView x = b.in(x_shape, std::move(values));
    const Shape result = {x_shape[0], x_shape[2]};
    const OutputView y = b.out(result, uniform(result.count(), 2));
    const OutputView places(b.plain_out(std::vector<std::int64_t>(static_cast<std::size_t>(result.count()), -7)),
                            result);
    return [=, &b] { (b.kernels.*kernel)(x, y, places, b.stream()); };
  };
}

Work add_up_absolute(bool squares, const Reduction& of, bool accumulate, bool to_floats) {
  return [=](Bench& b) {
    const InputView x = b.in(of.x, uniform(of.x.count(), 1));
    const Floats before = uniform(of.y.count(), 2);
    const OutputView y = to_floats ? b.floats_out(of.y, before, accumulate) : b.out(of.y, before, accumulate);
    return [=, &b] { b.kernels.absolute_sum(squares, x, 0.75F, y, b.stream()); };
  };
}

// Products of numbers near 1, so that they neither overflow nor vanish.
Work multiply(const Shape& x_shape) {
  return [=](Bench& b) {
    Floats values = uniform(x_shape.count(), 1);
    for (float& value : values) value = 1 + 0.01F * value;
    if (values.size() > 100) values[7] = 0, values[20] = -3, values[33] = kNan;
    const InputView x = b.in(x_shape, std::move(values));
    const Shape result = {x_shape[0], x_shape[2]};
    const OutputView y = b.out(result, uniform(result.count(), 2));
    return [=, &b] { b.kernels.prod(x, y, b.stream()); };
  };
}

// No, one or several factors of a line are 0.
Work multiply_backward(const Shape& x_shape, bool accumulate, bool with_zeros) {
  return [=](Bench& b) {
    Floats values = uniform(x_shape.count(), 1);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = with_zeros && i % 9 == 4 ? 0 : 1 + values[i] / 64;
    const InputView x = b.in(x_shape, std::move(values));
    const InputView y_grad = b.in({x_shape[0], x_shape[2]}, uniform(x_shape[0] * x_shape[2], 2));
    const OutputView x_grad = b.out(x_shape, uniform(x_shape.count(), 3), accumulate);
    return [=, &b] { b.kernels.prod_backward(x, y_grad, x_grad, b.stream()); };
  };
}

const std::vector<Shape>& lines_in_middle() {
  static const std::vector<Shape> kShapes = {{1, 1, 1},    {3, 7, 1},    {2, 5, 3}, {4, 1003, 1}, {1, 70001, 1},
                                             {3, 200, 70}, {1000, 2, 1}, {0, 3, 4}, {4, 3, 0},    {2, 40, 300}};
  return kShapes;
}

void extremes(Cases& cases, Extreme KernelTable::*kernel, const char* name) {
  for (const Shape& x : lines_in_middle())
    for (const Contents contents : {Contents::kNumbers, Contents::kWithNan})
      cases.test(fmt::format("{}, {}", x.text(), contents == Contents::kNumbers ? "numbers" : "NaN"), {kExact},
                 extreme(kernel, x, contents));
  const Index n = cases.sizes.elements;
  const auto row = [&](const char* of, const Shape& x) {
    cases.large_row(fmt::format("{} of {}", name, of), cases.element_bytes(), extreme(kernel, x, Contents::kNumbers));
  };
  row("all", {1, n, 1}), row("rows of 256", {n / 256, 256, 1}), row("columns", {1, n / 256, 256});
}

}  // namespace

void sum(Cases& cases) {
  for (const Reduction& of : reductions())
    for (const bool accumulate : {false, true})
      for (const bool to_floats : {false, true})
        cases.test(fmt::format("{} to {}, {}, {}", of.x.text(), of.y.text(), accumulate, to_floats),
                   {to_floats ? kSums : rounded(cases.type, accumulate)}, add_up(of, accumulate, to_floats));
  const Index n = cases.sizes.elements, rows = n / 256;
  const double bytes = cases.element_bytes();
  cases.large_row("sum of all", bytes, add_up({{n}, {}}, false, false));
  cases.large_row("sums of rows of 256", bytes, add_up({{rows, 256}, {rows, 1}}, false, false));
  cases.large_row("sums of 256 columns", bytes, add_up({{rows, 256}, {256}}, false, false));
  cases.large_row("sums of 4 columns", bytes, add_up({{n / 4, 4}, {4}}, false, false));
}

void absolute_sum(Cases& cases) {
  for (const Reduction& of : reductions())
    for (const bool squares : {false, true})
      for (const bool accumulate : {false, true})
        cases.test(fmt::format("{} to {}, {}, {}", of.x.text(), of.y.text(), squares, accumulate),
                   {squares == accumulate ? kSums : rounded(cases.type, accumulate)},
                   add_up_absolute(squares, of, accumulate, /*to_floats=*/squares == accumulate));
  const Index n = cases.sizes.elements, rows = n / 256;
  const double bytes = cases.element_bytes();
  for (const bool squares : {false, true}) {
    const char* const name = squares ? "squares" : "magnitudes";
    const auto row = [&](const char* of, const Reduction& reduction) {
      cases.large_row(fmt::format("sum of {}{}", name, of), bytes, add_up_absolute(squares, reduction, false, false));
    };
    row("", {{n}, {}}), row(", rows of 256", {{rows, 256}, {rows, 1}}), row(", 256 columns", {{rows, 256}, {256}});
  }
}

void max(Cases& cases) { extremes(cases, &KernelTable::max, "largest"); }
void min(Cases& cases) { extremes(cases, &KernelTable::min, "smallest"); }

void prod(Cases& cases) {
  for (const Shape& x : {Shape{1, 1, 1}, Shape{3, 7, 1}, Shape{2, 5, 3}, Shape{4, 1003, 1}, Shape{3, 40, 70},
                         Shape{2, 0, 3}, Shape{0, 3, 4}, Shape{2, 20, 300}})
    cases.test(x.text(), {{.value = cases.is_half() ? step_of(cases.type) : 1e-6F}}, multiply(x));
  const Index n = cases.sizes.elements;
  cases.large_row("product of all", cases.element_bytes(), multiply({1, n, 1}));
  cases.large_row("products of rows of 256", cases.element_bytes(), multiply({n / 256, 256, 1}));
  cases.large_row("products of columns", cases.element_bytes(), multiply({1, n / 256, 256}));
}

void prod_backward(Cases& cases) {
  for (const Shape& x : {Shape{1, 1, 1}, Shape{3, 7, 1}, Shape{2, 5, 3}, Shape{4, 203, 1}, Shape{3, 40, 70},
                         Shape{2, 0, 3}, Shape{0, 3, 4}, Shape{2, 20, 300}})
    for (const bool accumulate : {false, true})
      for (const bool with_zeros : {false, true})
        cases.test(fmt::format("{}, accumulate {}, zeros {}", x.text(), accumulate, with_zeros),
                   {{.value = cases.is_half() ? step_of(cases.type) : 1e-6F, .absolute = 1e-6F}},
                   multiply_backward(x, accumulate, with_zeros));
  const Index n = cases.sizes.elements;
  cases.large_row("products of rows of 256 backward", 2 * cases.element_bytes(),
                  multiply_backward({n / 256, 256, 1}, false, false));
}

}  // namespace lockstep::testing::cases
