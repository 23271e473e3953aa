// Sums over any dimensions, and maxima with their positions.
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

Work largest(const Shape& x_shape, Contents contents) {
  return [=](Bench& b) {
    Floats values = whole_numbers(x_shape.count(), 1);  // many of them equal
    if (contents == Contents::kWithNan)
      for (std::size_t i = 0; i < values.size(); i += 37) values[i] = std::numeric_limits<float>::quiet_NaN();
    const InputView x = b.in(x_shape, std::move(values));
    const Shape result = {x_shape[0], x_shape[2]};
    const OutputView y = b.out(result, uniform(result.count(), 2));
    const OutputView places(b.plain_out(std::vector<std::int64_t>(static_cast<std::size_t>(result.count()), -7)),
                            result);
    return [=, &b] { b.kernels.max(x, y, places, b.stream()); };
  };
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

void max(Cases& cases) {
  for (const Shape& x : {Shape{1, 1, 1}, Shape{3, 7, 1}, Shape{2, 5, 3}, Shape{4, 1003, 1}, Shape{1, 70001, 1},
                         Shape{3, 200, 70}, Shape{1000, 2, 1}, Shape{0, 3, 4}, Shape{4, 3, 0}})
    for (const Contents contents : {Contents::kNumbers, Contents::kWithNan})
      cases.test(fmt::format("{}, {}", x.text(), contents == Contents::kNumbers ? "numbers" : "NaN"), {kExact},
                 largest(x, contents));
  const Index n = cases.sizes.elements;
  cases.large_row("largest of all", cases.element_bytes(), largest({1, n, 1}, Contents::kNumbers));
  cases.large_row("largest of rows of 256", cases.element_bytes(), largest({n / 256, 256, 1}, Contents::kNumbers));
  cases.large_row("largest of columns", cases.element_bytes(), largest({1, n / 256, 256}, Contents::kNumbers));
}

}  // namespace lockstep::testing::cases
