#include "kernels/cases/products.h"
#include "kernels/cases/timed_layers.h"

namespace lockstep::testing::cases {

namespace {

Work forward(const LinearShape& s, bool with_bias, bool relu, Place bias_place = Place::kAligned) {
  return [=](Bench& b) {
    const InputView x = in(b, x_shape(s), 1), weight = in(b, weight_shape(s), 2),
                    bias = in(b, bias_shape(s), 3, bias_place);
    const OutputView y = out(b, y_shape(s), 5);
    return [=, &b] { b.kernels.linear(x, weight, with_bias ? bias : InputView(), relu, y, b.stream()); };
  };
}

Work backward_data(const LinearShape& s, bool accumulate) {
  return [=](Bench& b) {
    const InputView y_grad = in(b, y_shape(s), 4), weight = in(b, weight_shape(s), 2);
    const OutputView x_grad = out(b, x_shape(s), 6, accumulate);
    return [=, &b] { b.kernels.linear_backward_data(y_grad, weight, x_grad, b.stream()); };
  };
}

Work backward_weights(const LinearShape& s, bool with_bias, bool accumulate, Place place) {
  return [=](Bench& b) {
    const InputView x = in(b, x_shape(s), 1), y_grad = in(b, y_shape(s), 4);
    const OutputView weight_grad = floats_out(b, weight_shape(s), 7, accumulate, place);
    const OutputView bias_grad = floats_out(b, bias_shape(s), 8, !accumulate, place);
    return [=, &b] {
      b.kernels.linear_backward_weights(x, y_grad, weight_grad, with_bias ? bias_grad : OutputView(), b.stream());
    };
  };
}

Row row_of(const Cases& cases, const Layer<LinearShape>& layer, const std::string& direction, bool float32_weights) {
  return {.name = layer.name + direction,
          .bytes = bytes_of(cases, layer.shape, float32_weights),
          .flops = flops_of(layer.shape),
          .is_limit = layer.name.starts_with("linear")};
}

}  // namespace

// Without fusion, a library also rounds before it adds the bias, so the bounds are those of a sum in two steps.
void linear(Cases& cases) {
  for (const LinearShape& s : linear_shapes())
    for (const bool with_bias : {false, true})
      for (const bool relu : {false, true})
        cases.test(fmt::format("{}, bias {}, relu {}", name_of(s), with_bias, relu), {rounded(cases.type, true)},
                   forward(s, with_bias, relu));
  for (const LinearShape& s : linear_shapes())
    for (const bool relu : {false, true})
      if (!cases.is_half())
        cases.test(fmt::format("{}, bias one element off, relu {}", name_of(s), relu), {kSums},
                   forward(s, true, relu, Place::kOneElementOff));
  for (const LinearShape& s : linear_shapes())
    if (s.batch > 0)
      for (const bool with_bias : {false, true})
        cases.test(fmt::format("{}, bias {}, NaN through ReLU", name_of(s), with_bias), {rounded(cases.type, true)},
                   [=](Bench& b) {
                     const InputView x = broken_at_first(b, x_shape(s)), weight = in(b, weight_shape(s), 2),
                                     bias = in(b, bias_shape(s), 3);
                     const OutputView y = out(b, y_shape(s), 5);
                     return
                         [=, &b] { b.kernels.linear(x, weight, with_bias ? bias : InputView(), true, y, b.stream()); };
                   });
  for (const auto& layer : linear_layers(cases.sizes.batch, cases.sizes.side))
    cases.row(row_of(cases, layer, " forward", false), forward(layer.shape, true, false));
}

void linear_backward_data(Cases& cases) {
  for (const LinearShape& s : linear_shapes())
    for (const bool accumulate : {false, true})
      cases.test(fmt::format("{}, {}", name_of(s), accumulate), {rounded(cases.type, accumulate)},
                 backward_data(s, accumulate));
  for (const auto& layer : linear_layers(cases.sizes.batch, cases.sizes.side))
    cases.row(row_of(cases, layer, " backward data", false), backward_data(layer.shape, false));
}

// Gradients of weights are float32, but a library may have rounded them to the activations' type in between.
void linear_backward_weights(Cases& cases) {
  for (const LinearShape& s : linear_shapes())
    for (const bool flag : {false, true})
      for (const bool with_bias : {false, true})
        cases.test(fmt::format("{}, bias {}, {}", name_of(s), with_bias, flag),
                   {rounded(cases.type, flag == with_bias), kSums},
                   backward_weights(s, with_bias, flag == with_bias,
                                    flag || !with_bias ? Place::kOneElementOff : Place::kAligned));
  for (const auto& layer : linear_layers(cases.sizes.batch, cases.sizes.side))
    cases.row(row_of(cases, layer, " backward weights", true),
              backward_weights(layer.shape, false, false, Place::kAligned));
}

namespace {

// GELU by tanh has a fused form on a GPU if the features are a multiple of 8; the others are two kernels.
constexpr UnaryOperation kFunctions[] = {{UnaryFunction::kGeluTanh}, {UnaryFunction::kGelu}, {UnaryFunction::kSilu}};
std::vector<LinearShape> shapes_before_functions() {
  std::vector<LinearShape> shapes = linear_shapes();
  for (const LinearShape& s : {LinearShape{5, 16, 24}, {9, 40, 64}, {33, 8, 8}}) shapes.push_back(s);
  return shapes;
}

Work forward_with(const UnaryOperation& f, const LinearShape& s, bool with_bias, Place place = Place::kAligned) {
  return [=](Bench& b) {
    const InputView x = in(b, x_shape(s), 1), weight = in(b, weight_shape(s), 2, place),
                    bias = in(b, bias_shape(s), 3, place);
    const OutputView before = out(b, y_shape(s), 5, false, place), y = out(b, y_shape(s), 6);
    return [=, &b] { b.kernels.linear_unary(f, x, weight, with_bias ? bias : InputView(), before, y, b.stream()); };
  };
}

Work backward_with(const UnaryOperation& f, const LinearShape& s, Place place = Place::kAligned) {
  return [=](Bench& b) {
    const InputView y_grad = in(b, y_shape(s), 4), weight = in(b, weight_shape(s), 2),
                    before = in(b, x_shape(s), 5, place);
    const OutputView before_grad = out(b, x_shape(s), 6, false, place);
    return [=, &b] { b.kernels.linear_unary_backward(f, y_grad, weight, before, before_grad, b.stream()); };
  };
}

// The hidden layer of GPT-2's feed-forward block.
constexpr Index kGptRows = 256, kGptWidth = 768, kGptHidden = 3072;

}  // namespace

void linear_unary(Cases& cases) {
  for (const LinearShape& s : shapes_before_functions())
    for (const UnaryOperation& f : kFunctions)
      for (const bool with_bias : {false, true})
        cases.test(fmt::format("{}, {}, bias {}", name_of(s), info_of(f.function).name, with_bias),
                   {rounded(cases.type, true)}, forward_with(f, s, with_bias));
  for (const LinearShape& s : shapes_before_functions())
    cases.test(fmt::format("{}, off", name_of(s)), {rounded(cases.type, true)},
               forward_with(kFunctions[0], s, true, Place::kOneElementOff));
  const LinearShape up{kGptRows, kGptWidth, kGptHidden};
  cases.row({.name = "linear and gelu forward", .bytes = bytes_of(cases, up, false), .flops = flops_of(up)},
            forward_with(kFunctions[0], up, true));
}

void linear_unary_backward(Cases& cases) {
  for (const LinearShape& s : shapes_before_functions())
    for (const UnaryOperation& f : kFunctions)
      cases.test(fmt::format("{}, {}", name_of(s), info_of(f.function).name), {rounded(cases.type, true)},
                 backward_with(f, s));
  for (const LinearShape& s : shapes_before_functions())
    cases.test(fmt::format("{}, off", name_of(s)), {rounded(cases.type, true)},
               backward_with(kFunctions[0], s, Place::kOneElementOff));
  const LinearShape down{kGptRows, kGptHidden, kGptWidth};
  cases.row({.name = "linear and gelu backward data", .bytes = bytes_of(cases, down, false), .flops = flops_of(down)},
            backward_with(kFunctions[0], down));
}

}  // namespace lockstep::testing::cases
