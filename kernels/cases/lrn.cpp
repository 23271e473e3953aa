#include "kernels/cases/cases.h"
#include "kernels/cases/shapes.h"

namespace lockstep::testing::cases {

namespace {

constexpr Bound kCloseLrn{.largest = 5e-6F};

struct Normalised {
  InputView x;
  OutputView y, scale;
};

Normalised operands(Bench& b, const LrnParams& p) {
  const Index count = p.rows * p.channels;
  const InputView x = b.in(x_shape(p), uniform(count, 1));
  const OutputView y = b.out(x_shape(p), uniform(count, 4));
  return {x, y, b.floats_out(x_shape(p), uniform(count, 5))};
}

Work forward(const LrnParams& p) {
  return [=](Bench& b) {
    const Normalised of = operands(b, p);
    return [=, &b] { b.kernels.lrn(p, of.x, of.y, of.scale, b.stream()); };
  };
}

Work backward(const LrnParams& p, bool accumulate) {
  return [=](Bench& b) {
    const Normalised of = operands(b, p);
    b.kernels.lrn(p, of.x, of.y, of.scale, b.stream());
    const InputView y_grad = b.in(x_shape(p), uniform(p.rows * p.channels, 2));
    const OutputView x_grad = b.out(x_shape(p), uniform(p.rows * p.channels, 3), accumulate);
    return [=, &b] { b.kernels.lrn_backward(p, of.x, of.y, of.scale, y_grad, x_grad, b.stream()); };
  };
}

Bound forward_bound(DType type) { return is_half(type) ? rounded(type) : kCloseLrn; }

LrnParams layer_of(const Cases& cases) { return {cases.sizes.batch * 12 * 12, 64, 4, 1.0F, 0.001F / 9, 0.75F}; }

}  // namespace

void lrn(Cases& cases) {
  for (const LrnParams& p : lrn_params()) cases.test(name_of(p), {forward_bound(cases.type), kCloseLrn}, forward(p));
  const LrnParams p = layer_of(cases);
  cases.row({.name = "lrn forward", .bytes = (2 * cases.element_bytes() + 4) * static_cast<double>(x_shape(p).count())},
            forward(p));
}

void lrn_backward(Cases& cases) {
  for (const LrnParams& p : lrn_params()) {
    const bool accumulate = p.rows % 2 == 1;
    // With 16 bits, it reads a y that may be the neighbour of the plain kernel's.
    const float step = step_of(cases.type);
    const Bound half{.value = 2 * step, .largest = step, .absolute = accumulate ? step : 0};
    cases.test(name_of(p), {forward_bound(cases.type), kCloseLrn, cases.is_half() ? half : kCloseLrn},
               backward(p, accumulate));
  }
  const LrnParams p = layer_of(cases);
  const auto count = static_cast<double>(x_shape(p).count());
  cases.row({.name = "lrn backward", .bytes = (4 * cases.element_bytes() + 4) * count}, backward(p, false));
}

}  // namespace lockstep::testing::cases
