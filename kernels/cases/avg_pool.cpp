// Gradients are sums over windows in order, divided, so results are close but not exact.
#include "kernels/cases/cases.h"
#include "kernels/cases/shapes.h"
#include "kernels/cases/timed_layers.h"

namespace lockstep::testing::cases {

namespace {

// Relative to the largest mean; 16-bit results may be the neighbouring number.
Bound mean_bound(DType type, bool accumulate = false) {
  const Bound bound = rounded(type, accumulate);
  return {.value = bound.value, .largest = 2e-6F, .absolute = bound.absolute};
}

Work forward(const Pool2dShape& s, bool count_padding) {
  return [=](Bench& b) {
    const InputView x = b.in(x_shape(s), uniform(x_shape(s).count(), 1));
    const OutputView y = b.out(y_shape(s), uniform(y_shape(s).count(), 2));
    return [=, &b] { b.kernels.avg_pool2d(s, count_padding, x, y, b.stream()); };
  };
}

Work backward(const Pool2dShape& s, bool count_padding, bool accumulate) {
  return [=](Bench& b) {
    const InputView y_grad = b.in(y_shape(s), uniform(y_shape(s).count(), 3));
    const OutputView x_grad = b.out(x_shape(s), uniform(x_shape(s).count(), 4), accumulate);
    return [=, &b] { b.kernels.avg_pool2d_backward(s, count_padding, y_grad, x_grad, b.stream()); };
  };
}

// The entire image at once, and windows along one dimension.
std::vector<Pool2dShape> avg_pool2d_shapes() {
  std::vector<Pool2dShape> shapes = pool2d_shapes();
  shapes.push_back({3, 7, 5, 33, 1, 1, 7, 5, 7, 5, 0, 0, 0, 0});
  shapes.push_back({2, 1, 11, 6, 1, 6, 1, 3, 1, 2, 0, 1, 0, 1});
  return shapes;
}

// Entire planes of values near 1, whose sums in float32 would lose precision; one of them narrow, one wide, and two
// overlapping windows.
std::vector<Pool2dShape> planes() {
  return {{1, 260, 230, 3, 1, 1, 260, 230, 260, 230, 0, 0, 0, 0},
          {2, 20000, 1, 17, 1, 1, 20000, 1, 20000, 1, 0, 0, 0, 0},
          {1, 1, 30001, 65, 1, 1, 1, 30001, 1, 30001, 0, 0, 0, 0},
          {1, 150, 151, 16, 1, 2, 150, 150, 1, 1, 0, 0, 0, 0}};
}

std::vector<Layer<Pool2dShape>> timed_layers(Index batch) {
  return {{"average pool 3/2", {batch, 24, 24, 64, 12, 12, 3, 3, 2, 2, 1, 1, 1, 1}},
          {"global average pool", {batch, 8, 8, 512, 1, 1, 8, 8, 8, 8, 0, 0, 0, 0}}};
}

Row row_of(const Cases& cases, const Layer<Pool2dShape>& layer, const std::string& direction) {
  const Index moved = x_shape(layer.shape).count() + y_shape(layer.shape).count();
  return {.name = layer.name + direction, .bytes = cases.element_bytes() * static_cast<double>(moved)};
}

}  // namespace

void avg_pool2d(Cases& cases) {
  for (const Pool2dShape& s : avg_pool2d_shapes()) {
    for (const bool count_padding : {false, true})
      cases.test(fmt::format("{}, padding counts {}", name_of(s), count_padding), {mean_bound(cases.type)},
                 forward(s, count_padding));
    if (x_shape(s).count() > 0)
      cases.test(name_of(s) + ", NaN", {mean_bound(cases.type)}, [=](Bench& b) {
        Floats values = uniform(x_shape(s).count(), 1);
        values[values.size() / 2] = kNan;
        const InputView x = b.in(x_shape(s), std::move(values));
        const OutputView y = b.out(y_shape(s), uniform(y_shape(s).count(), 2));
        return [=, &b] { b.kernels.avg_pool2d(s, true, x, y, b.stream()); };
      });
  }
  for (const Pool2dShape& s : planes())
    cases.test("a plane, " + name_of(s), {{.value = 1e-6F + (cases.is_half() ? step_of(cases.type) : 0)}},
               [=](Bench& b) {
                 Floats values = uniform(x_shape(s).count(), 1);
                 for (float& value : values) value = 1 + value / 8;
                 const InputView x = b.in(x_shape(s), std::move(values));
                 const OutputView y = b.out(y_shape(s), uniform(y_shape(s).count(), 2));
                 return [=, &b] { b.kernels.avg_pool2d(s, true, x, y, b.stream()); };
               });
  for (const auto& layer : timed_layers(cases.sizes.batch))
    cases.row(row_of(cases, layer, " forward"), forward(layer.shape, true));
}

void avg_pool2d_backward(Cases& cases) {
  for (const Pool2dShape& s : avg_pool2d_shapes())
    for (const bool count_padding : {false, true})
      for (const bool accumulate : {false, true})
        cases.test(fmt::format("{}, padding counts {}, {}", name_of(s), count_padding, accumulate),
                   {mean_bound(cases.type, accumulate)}, backward(s, count_padding, accumulate));
  for (const auto& layer : timed_layers(cases.sizes.batch))
    cases.row(row_of(cases, layer, " backward"), backward(layer.shape, true, false));
}

}  // namespace lockstep::testing::cases
