#include "kernels/cases/cases.h"

namespace lockstep::testing::cases {

namespace {

struct MatmulCase {
  Index batch, rows, columns, inner;
  bool transpose_a, transpose_b, accumulate;

  std::string name() const {
    return fmt::format("{} x ({}, {}){} by ({}, {}){}{}", batch, rows, inner, transpose_a ? "^T" : "", inner, columns,
                       transpose_b ? "^T" : "", accumulate ? ", added" : "");
  }
};

Work product(const MatmulCase& c) {
  return [=](Bench& b) {
    const Shape a_shape = c.transpose_a ? Shape{c.batch, c.inner, c.rows} : Shape{c.batch, c.rows, c.inner};
    const Shape b_shape = c.transpose_b ? Shape{c.batch, c.columns, c.inner} : Shape{c.batch, c.inner, c.columns};
    const InputView left = b.in(a_shape, uniform(a_shape.count(), 1)),
                    right = b.in(b_shape, uniform(b_shape.count(), 2));
    const OutputView out = b.out({c.batch, c.rows, c.columns}, uniform(c.batch * c.rows * c.columns, 3), c.accumulate);
    return [=, &b] { b.kernels.matmul(left, c.transpose_a, right, c.transpose_b, out, b.stream()); };
  };
}

}  // namespace

void matmul(Cases& cases) {
  for (const auto& [batch, rows, columns, inner] : std::vector<std::array<Index, 4>>{{1, 1, 1, 1},
                                                                                     {1, 300, 17, 33},
                                                                                     {3, 5, 7, 2},
                                                                                     {2, 64, 32, 16},
                                                                                     {0, 2, 3, 4},
                                                                                     {2, 3, 4, 0},
                                                                                     {2, 0, 3, 4},
                                                                                     {5, 1, 9, 70}})
    for (const bool transpose_a : {false, true})
      for (const bool transpose_b : {false, true})
        for (const bool accumulate : {false, true}) {
          const MatmulCase c{batch, rows, columns, inner, transpose_a, transpose_b, accumulate};
          cases.test(c.name(), {rounded(cases.type, accumulate)}, product(c));
        }
  const Index side = cases.sizes.side / 4;
  cases.row({.name = fmt::format("matmul 16 x {} x {} x {}", side, side, side),
             .bytes = 3 * 16 * cases.element_bytes() * static_cast<double>(side * side),
             .flops = 2.0 * 16 * static_cast<double>(side) * static_cast<double>(side * side)},
            product({16, side, side, side, false, true, false}));
}

}  // namespace lockstep::testing::cases
