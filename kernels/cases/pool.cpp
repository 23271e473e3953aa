// Maxima are tested on whole numbers, which are often equal. A gradient is a sum over windows in order, so in float32
// it is exact except where our order differs.
#include "kernels/cases/cases.h"
#include "kernels/cases/shapes.h"
#include "kernels/cases/timed_layers.h"

namespace lockstep::testing::cases {

namespace {

struct Pooled {
  InputView x;
  std::uint16_t* argmax;
  OutputView y;
};

Pooled operands(Bench& b, const Pool2dShape& s, bool with_nan = false) {
  Floats x = whole_numbers(x_shape(s).count(), 1);
  for (std::size_t i = 0; with_nan && i < x.size(); i += 13) x[i] = kNan;
  const auto count = static_cast<std::size_t>(y_shape(s).count());
  const InputView in = b.in(x_shape(s), std::move(x));
  std::uint16_t* const argmax = b.plain_out(std::vector<std::uint16_t>(count, 999));
  return {in, argmax, b.out(y_shape(s), uniform(y_shape(s).count(), 2))};
}

Work forward(const Pool2dShape& s, bool with_nan) {
  return [=](Bench& b) {
    const Pooled of = operands(b, s, with_nan);
    return [=, &b] { b.kernels.max_pool2d(s, of.x, of.y, of.argmax, b.stream()); };
  };
}

Work backward(const Pool2dShape& s, bool accumulate) {
  return [=](Bench& b) {
    const Pooled of = operands(b, s);
    b.kernels.max_pool2d(s, of.x, of.y, of.argmax, b.stream());
    const InputView y_grad = b.in(y_shape(s), uniform(y_shape(s).count(), 3));
    const OutputView x_grad = b.out(x_shape(s), uniform(x_shape(s).count(), 4), accumulate);
    return [=, &b] { b.kernels.max_pool2d_backward(s, y_grad, of.argmax, x_grad, b.stream()); };
  };
}

Row row_of(const Cases& cases, const Layer<Pool2dShape>& layer, const std::string& direction) {
  const auto in = static_cast<double>(x_shape(layer.shape).count()),
             out = static_cast<double>(y_shape(layer.shape).count());
  return {.name = layer.name + direction, .bytes = cases.element_bytes() * in + (cases.element_bytes() + 2) * out};
}

}  // namespace

void max_pool2d(Cases& cases) {
  for (const Pool2dShape& s : pool2d_shapes())
    for (const bool with_nan : {false, true})
      cases.test(fmt::format("{}{}", name_of(s), with_nan ? ", with NaN" : ""), {kExact}, forward(s, with_nan));
  for (const auto& layer : pooling_layers(cases.sizes.batch))
    cases.row(row_of(cases, layer, " forward"), forward(layer.shape, false));
}

void max_pool2d_backward(Cases& cases) {
  for (const Pool2dShape& s : pool2d_shapes())
    for (const bool accumulate : {false, true})
      cases.test(fmt::format("{}, {}", name_of(s), accumulate), {kExact, kExact, rounded(cases.type, accumulate)},
                 backward(s, accumulate));
  for (const auto& layer : pooling_layers(cases.sizes.batch))
    cases.row(row_of(cases, layer, " backward"), backward(layer.shape, false));
}

}  // namespace lockstep::testing::cases
