#include "kernels/cases/products.h"
#include "kernels/cases/timed_layers.h"

namespace lockstep::testing::cases {

namespace {

// Where the operands lie. Windows of a batch, such as a part of it for one of several devices, begin at any element.
struct Places {
  Place x = Place::kAligned, weight = Place::kAligned, y = Place::kAligned;
};
constexpr Place kOff = Place::kOneElementOff;
// One operand is off in small shapes, all of them in the others.
std::vector<Places> places_of(const Conv2dShape& s) {
  constexpr std::int64_t kSmall = 512;
  if (x_shape(s).count() > kSmall) return {{kOff, kOff, kOff}};
  return {{.x = kOff}, {.weight = kOff}, {.y = kOff}};
}
std::string text_of(const Places& places) {
  const auto off = [](Place place) { return place == kOff ? "off" : "aligned"; };
  return fmt::format("x {}, weight {}, y {}", off(places.x), off(places.weight), off(places.y));
}

Work forward(const Conv2dShape& s, bool with_bias, bool relu, const Places& places = {}) {
  return [=](Bench& b) {
    const InputView x = in(b, x_shape(s), 1, places.x), weight = in(b, weight_shape(s), 2, places.weight),
                    bias = in(b, bias_shape(s), 3, places.weight);
    const OutputView y = out(b, y_shape(s), 5, false, places.y);
    return [=, &b] { b.kernels.conv2d(s, x, weight, with_bias ? bias : InputView(), relu, y, b.stream()); };
  };
}

Work backward_data(const Conv2dShape& s, bool accumulate, const Places& places = {}) {
  return [=](Bench& b) {
    const InputView y_grad = in(b, y_shape(s), 4, places.y), weight = in(b, weight_shape(s), 2, places.weight);
    const OutputView x_grad = out(b, x_shape(s), 6, accumulate, places.x);
    return [=, &b] { b.kernels.conv2d_backward_data(s, y_grad, weight, x_grad, b.stream()); };
  };
}

Work backward_weights(const Conv2dShape& s, bool with_bias, bool accumulate, const Places& places) {
  return [=](Bench& b) {
    const InputView x = in(b, x_shape(s), 1, places.x), y_grad = in(b, y_shape(s), 4, places.y);
    const OutputView weight_grad = floats_out(b, weight_shape(s), 7, accumulate, places.weight);
    const OutputView bias_grad = floats_out(b, bias_shape(s), 8, !accumulate, places.weight);
    return [=, &b] {
      b.kernels.conv2d_backward_weights(s, x, y_grad, weight_grad, with_bias ? bias_grad : OutputView(), b.stream());
    };
  };
}

Row row_of(const Cases& cases, const Layer<Conv2dShape>& layer, const std::string& direction, bool float32_weights) {
  return {.name = layer.name + direction,
          .bytes = bytes_of(cases, layer.shape, float32_weights),
          .flops = flops_of(layer.shape)};
}

}  // namespace

// Without fusion, a library also rounds before it adds the bias, so the bounds are those of a sum in two steps.
void conv2d(Cases& cases) {
  for (const Conv2dShape& s : conv2d_shapes())
    for (const bool with_bias : {false, true})
      for (const bool relu : {false, true})
        cases.test(fmt::format("{}, bias {}, relu {}", name_of(s), with_bias, relu), {rounded(cases.type, true)},
                   forward(s, with_bias, relu));
  for (const Conv2dShape& s : conv2d_shapes())
    for (const Places& places : places_of(s))
      cases.test(fmt::format("{}, {}", name_of(s), text_of(places)), {rounded(cases.type, true)},
                 forward(s, true, true, places));
  // Only shapes in which every window contains a pixel: if there is only padding, a library that computes tiles may
  // produce NaN, while the plain kernel produces 0.
  for (const Conv2dShape& s : conv2d_shapes())
    if (s.batch > 0 && s.pad_top < s.kernel_height)
      for (const bool with_bias : {false, true})
        cases.test(fmt::format("{}, bias {}, NaN through ReLU", name_of(s), with_bias), {rounded(cases.type, true)},
                   [=](Bench& b) {
                     const InputView x = broken_at_first(b, x_shape(s)), weight = in(b, weight_shape(s), 2),
                                     bias = in(b, bias_shape(s), 3);
                     const OutputView y = out(b, y_shape(s), 5);
                     return [=, &b] {
                       b.kernels.conv2d(s, x, weight, with_bias ? bias : InputView(), true, y, b.stream());
                     };
                   });
  for (const auto& layer : convolution_layers(cases.sizes.batch))
    cases.row(row_of(cases, layer, " forward + relu", false), forward(layer.shape, true, true));
}

void conv2d_backward_data(Cases& cases) {
  for (const Conv2dShape& s : conv2d_shapes())
    for (const bool accumulate : {false, true})
      cases.test(fmt::format("{}, {}", name_of(s), accumulate), {rounded(cases.type, accumulate)},
                 backward_data(s, accumulate));
  for (const Conv2dShape& s : conv2d_shapes())
    for (const Places& places : places_of(s))
      cases.test(fmt::format("{}, {}", name_of(s), text_of(places)), {rounded(cases.type, false)},
                 backward_data(s, false, places));
  for (const auto& layer : convolution_layers(cases.sizes.batch))
    if (layer.name != "conv1")  // images need no gradient
      cases.row(row_of(cases, layer, " backward data", false), backward_data(layer.shape, false));
}

// Gradients of weights are float32, but a library may have rounded them to the activations' type in between.
void conv2d_backward_weights(Cases& cases) {
  for (const Conv2dShape& s : conv2d_shapes())
    for (const bool flag : {false, true})
      for (const bool with_bias : {false, true})
        cases.test(
            fmt::format("{}, bias {}, {}", name_of(s), with_bias, flag),
            {rounded(cases.type, flag == with_bias), kSums},
            backward_weights(s, with_bias, flag == with_bias, {.weight = flag || !with_bias ? kOff : Place::kAligned}));
  for (const Conv2dShape& s : conv2d_shapes())
    for (const Places& places : places_of(s))
      cases.test(fmt::format("{}, {}", name_of(s), text_of(places)), {rounded(cases.type, false), kSums},
                 backward_weights(s, true, false, places));
  for (const auto& layer : convolution_layers(cases.sizes.batch))
    cases.row(row_of(cases, layer, " backward weights", true), backward_weights(layer.shape, true, false, {}));
}

}  // namespace lockstep::testing::cases
