// Running sums and sorted lines, along the middle dimension.
#include <algorithm>

#include "kernels/cases/cases.h"

namespace lockstep::testing::cases {

namespace {

const std::vector<Shape>& shapes_of_lines() {
  static const std::vector<Shape> kShapes = {{1, 1, 1},   {3, 7, 1}, {2, 5, 3}, {3, 130, 1}, {1, 2100, 1}, {1, 300, 3},
                                             {100, 2, 1}, {0, 3, 4}, {4, 3, 0}, {2, 4, 300}, {3, 0, 2}};
  return kShapes;
}

Work add_along(const Shape& shape, bool reversed, bool accumulate) {
  return [=](Bench& b) {
    const InputView x = b.in(shape, uniform(shape.count(), 1));
    const OutputView y = b.out(shape, uniform(shape.count(), 2), accumulate);
    return [=, &b] { b.kernels.cumsum(reversed, x, y, b.stream()); };
  };
}

enum class Values { kDistinct, kOftenEqual, kSpecial };

Floats values_of(Values values, Index count) {
  Floats all = values == Values::kOftenEqual ? whole_numbers(count, 1) : uniform(count, 1);
  constexpr float kSpecial[] = {0, -0.0F, kNan, kInfinity, -kInfinity, -kNan, 1, -1};
  if (values == Values::kSpecial)
    for (std::size_t i = 0; i < all.size(); ++i)
      if (i % 3 != 0) all[i] = kSpecial[i * 7 % std::size(kSpecial)];
  return all;
}

Work put_in_order(const Shape& shape, Index kept, bool descending, Values values) {
  return [=](Bench& b) {
    const InputView x = b.in(shape, values_of(values, shape.count()));
    const Shape result = {shape[0], kept, shape[2]};
    const OutputView sorted = b.out(result, uniform(result.count(), 2));
    const OutputView places(b.plain_out(std::vector<std::int64_t>(static_cast<std::size_t>(result.count()), -7)),
                            result);
    return [=, &b] { b.kernels.sort(descending, x, sorted, places, b.stream()); };
  };
}

}  // namespace

void cumsum(Cases& cases) {
  for (const Shape& shape : shapes_of_lines())
    for (const bool reversed : {false, true})
      for (const bool accumulate : {false, true}) {
        Bound bound = rounded(cases.type, accumulate);
        bound.absolute += 1e-6F;
        cases.test(fmt::format("{}, {}, {}", shape.text(), reversed, accumulate), {bound},
                   add_along(shape, reversed, accumulate));
      }
  const Index n = cases.sizes.elements;
  const double bytes = 2 * cases.element_bytes();
  cases.large_row("cumsum", bytes, add_along({1, n, 1}, false, false));
  cases.large_row("cumsum of rows of 256", bytes, add_along({n / 256, 256, 1}, false, false));
  cases.large_row("cumsum of columns", bytes, add_along({1, n / 256, 256}, false, false));
}

void sort(Cases& cases) {
  const auto add = [&](const Shape& shape, Index kept, bool descending, Values values) {
    cases.test(fmt::format("{} of {}, {}, {}", kept, shape.text(), descending, static_cast<int>(values)), {kExact},
               put_in_order(shape, kept, descending, values));
  };
  for (const Shape& shape : shapes_of_lines()) {
    const Index few = std::min<Index>(shape[1], 3);
    add(shape, shape[1], false, Values::kSpecial), add(shape, few, true, Values::kOftenEqual);
    if (shape[1] > 10) continue;  // an emulated GPU takes long
    for (const Values values : {Values::kDistinct, Values::kOftenEqual, Values::kSpecial})
      add(shape, shape[1], true, values), add(shape, few, false, values);
  }
  const Index n = cases.sizes.elements, rows = n / 256;
  const double bytes = 2 * cases.element_bytes() + 8;
  cases.large_row("sort", bytes, put_in_order({1, n, 1}, n, false, Values::kDistinct));
  cases.large_row("sort rows of 256", bytes, put_in_order({rows, 256, 1}, 256, false, Values::kDistinct));
  cases.large_row("sort columns", bytes, put_in_order({1, rows, 256}, rows, false, Values::kDistinct));
  cases.large_row("largest 10 of rows of 256", cases.element_bytes(),
                  put_in_order({rows, 256, 1}, 10, true, Values::kDistinct));
  cases.large_row("largest 100", cases.element_bytes(), put_in_order({1, n, 1}, 100, true, Values::kDistinct));
}

}  // namespace lockstep::testing::cases
