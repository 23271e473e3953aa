// Unary functions and their derivatives. Devices have their own exp, erf and similar functions, which differ by a few
// units in the last place.
#include <limits>
#include <utility>
#include <vector>

#include "kernels/cases/cases.h"
#include "kernels/cases/shapes.h"

namespace lockstep::testing::cases {

namespace {

struct NamedOperation {
  const char* name;
  UnaryOperation operation;
};

// Every function with its example of a parameter, and the powers that have loops of their own.
const std::vector<NamedOperation> kOperations = [] {
  std::vector<NamedOperation> all;
  for (const UnaryFunctionInfo& info : kUnaryFunctions)
    all.push_back({info.name, {info.function, info.parameter, info.second}});
  for (const auto& [name, exponent] : {std::pair("square", 2.0F), std::pair("cube", 3.0F), std::pair("constant", 0.0F)})
    all.push_back({name, {UnaryFunction::kPow, exponent}});
  return all;
}();

Bound close_to(DType type) {
  return {.value = is_half(type) ? step_of(type) : 4e-6F, .absolute = is_half(type) ? 1e-5F : 2e-6F};
}

// Values in -6 .. 6, and NaN, infinity, values beyond the range of exp(), and values whose square overflows.
Floats arguments(Index count) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const Floats special = {
      0,      -0.0F, 1,      -1,    100,    -100,      88.9F,      -88.9F,
      1e-30F, 1e20F, -1e20F, 3e38F, -3e38F, kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()};
  Floats values = uniform(count, 1);
  for (float& value : values) value *= 6;
  if (values.size() > special.size()) std::copy(special.begin(), special.end(), values.begin());
  return values;
}

// Only positive normal numbers.
Work forward_of_positive(const UnaryOperation& operation, Index count) {
  return [=](Bench& b) {
    Floats values = uniform(count, 1);
    for (float& value : values) value = std::abs(value) * 6 + 1e-30F;
    const InputView x = b.in({count}, values);
    const OutputView y = b.out({count}, arguments(count));
    return [=, &b] { b.kernels.unary(operation, x, y, b.stream()); };
  };
}

// Powers of negative numbers exist where the exponent is a whole number.
bool is_of_positive(const UnaryOperation& operation) {
  return info_of(operation.function).is_of_positive &&
         !(operation.function == UnaryFunction::kPow && operation.parameter >= 0);
}

Work forward(const UnaryOperation& operation, Index count, bool in_place, Place place) {
  return [=](Bench& b) {
    const InputView x = b.in({count}, arguments(count), place);
    const OutputView y = b.out({count}, arguments(count), false, in_place ? place : Place::kAligned);
    return [=, &b] { b.kernels.unary(operation, in_place ? InputView(y) : x, y, b.stream()); };
  };
}

Work backward(const UnaryOperation& operation, Index count, bool accumulate, Place place) {
  return [=](Bench& b) {
    const InputView saved = b.in({count}, arguments(count)), y_grad = b.in({count}, uniform(count, 2));
    const OutputView x_grad = b.out({count}, uniform(count, 3), accumulate, place),
                     same = b.out({count}, uniform(count, 4));
    return [=, &b] {
      b.kernels.unary_backward(operation, saved, y_grad, x_grad, b.stream());
      b.kernels.unary_backward(operation, saved, same, same, b.stream());  // in the memory of y_grad
    };
  };
}

Work large_backward(const UnaryOperation& operation, Index count) {
  return [=](Bench& b) {
    const InputView saved = b.in({count}, uniform(count, 1)), y_grad = b.in({count}, uniform(count, 2));
    const OutputView x_grad = b.out({count}, uniform(count, 3));
    return [=, &b] { b.kernels.unary_backward(operation, saved, y_grad, x_grad, b.stream()); };
  };
}

using OfCase =
    std::function<void(const std::string& what, const UnaryOperation& operation, Index count, bool flag, Place place)>;

void for_all_cases(const OfCase& visit) {
  for (const auto& [name, operation] : kOperations)
    for (const Index count : {0, 1, 17, 64, 1003})
      for (const bool flag : {false, true})
        for (const Place place : {Place::kAligned, Place::kOneElementOff})
          visit(fmt::format("{} of {} elements, {}, {}", name, count, flag,
                            place == Place::kAligned ? "aligned" : "one element off"),
                operation, count, flag, place);
}

}  // namespace

void unary(Cases& cases) {
  for_all_cases([&](const std::string& what, const UnaryOperation& operation, Index count, bool in_place, Place place) {
    cases.test(what, {close_to(cases.type)}, forward(operation, count, in_place, place));
  });
  for (const auto& [name, operation] : kOperations)
    if (is_of_positive(operation))
      cases.test(fmt::format("{} of positive numbers", name), {close_to(cases.type)},
                 forward_of_positive(operation, 3003));
  const Index n = cases.sizes.elements;
  for (const auto& [name, operation] : kOperations)
    cases.large_row(
        name, 2 * cases.element_bytes(),
        is_of_positive(operation) ? forward_of_positive(operation, n) : forward(operation, n, false, Place::kAligned));
}

void unary_backward(Cases& cases) {
  for_all_cases(
      [&](const std::string& what, const UnaryOperation& operation, Index count, bool accumulate, Place place) {
        cases.test(what, {close_to(cases.type)}, backward(operation, count, accumulate, place));
      });
  const Index n = cases.sizes.elements;
  for (const auto& [name, operation] : kOperations)
    cases.large_row(fmt::format("{} backward", name), 3 * cases.element_bytes(), large_backward(operation, n));
}

}  // namespace lockstep::testing::cases
