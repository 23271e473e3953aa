// Two broadcast operands: the same bits as the plain kernels, except for powers, for which devices have their own
// functions.
#include <limits>

#include "kernels/cases/cases.h"

namespace lockstep::testing::cases {

namespace {

struct Broadcast {
  Shape a, b, out;
};

const std::vector<Broadcast>& operand_shapes() {
  static const std::vector<Broadcast> kShapes = {{{}, {}, {}},
                                                 {{1003}, {1003}, {1003}},
                                                 {{7, 64}, {7, 64}, {7, 64}},
                                                 {{7, 64}, {64}, {7, 64}},
                                                 {{64}, {7, 64}, {7, 64}},
                                                 {{5, 17}, {17}, {5, 17}},
                                                 {{7, 64}, {}, {7, 64}},
                                                 {{}, {33}, {33}},
                                                 {{9, 32}, {9, 1}, {9, 32}},
                                                 {{9, 1}, {1, 5}, {9, 5}},
                                                 {{2, 3, 40}, {3, 1}, {2, 3, 40}},
                                                 {{2, 1, 3, 8}, {4, 1, 8}, {2, 4, 3, 8}},
                                                 {{2, 1, 3, 1, 2, 1}, {1, 2, 1, 3, 1, 2}, {2, 2, 3, 3, 2, 2}},
                                                 {{0, 5}, {5}, {0, 5}},
                                                 {{70001}, {1}, {70001}},
                                                 {{300, 256}, {256}, {300, 256}}};
  return kShapes;
}

Floats some(const Shape& shape, unsigned seed) {
  Floats values = uniform(shape.count(), seed);
  if (values.size() > 9) values[3] = std::numeric_limits<float>::quiet_NaN(), values[5] = 0, values[8] = 1e38F;
  return values;
}

constexpr BinaryFunction kFunctions[] = {BinaryFunction::kAdd, BinaryFunction::kSub,     BinaryFunction::kMul,
                                         BinaryFunction::kDiv, BinaryFunction::kMaximum, BinaryFunction::kMinimum};
constexpr Comparison kComparisons[] = {Comparison::kEqual, Comparison::kNotEqual, Comparison::kGreater,
                                       Comparison::kGreaterEqual};
constexpr const char* kFunctionNames[] = {"a + b", "a - b", "a * b", "a / b", "maximum", "minimum"};

constexpr BinaryFunction kPowers[] = {BinaryFunction::kPow, BinaryFunction::kPowBaseSlope,
                                      BinaryFunction::kPowExponentSlope};
constexpr const char* kPowerNames[] = {"a ^ b", "a ^ b, slope by a", "a ^ b, slope by b"};

Bound power_bound(const Cases& cases) {
  return {.value = cases.is_half() ? step_of(cases.type) : 4e-6F, .absolute = cases.is_half() ? 1e-5F : 2e-6F};
}

std::string text_of(const Broadcast& of) { return fmt::format("{} and {}", of.a.text(), of.b.text()); }

Work compute(BinaryFunction function, const Broadcast& of, Place place = Place::kAligned) {
  return [=](Bench& b) {
    const InputView x = b.in(of.a, some(of.a, 1), place), y = b.in(of.b, some(of.b, 2));
    const OutputView out = b.out(of.out, uniform(of.out.count(), 3));
    return [=, &b] { b.kernels.binary(function, x, y, out, b.stream()); };
  };
}

// Bases from 0.1 to 3, exponents from -2 to 2.
Work raise(BinaryFunction power, const Broadcast& of, Place place = Place::kAligned) {
  return [=](Bench& b) {
    Floats bases = uniform(of.a.count(), 1), exponents = uniform(of.b.count(), 2);
    for (float& base : bases) base = 1.55F + 1.45F * base;
    for (float& exponent : exponents) exponent *= 2;
    const InputView x = b.in(of.a, bases, place), y = b.in(of.b, exponents);
    const OutputView out = b.out(of.out, uniform(of.out.count(), 3));
    return [=, &b] { b.kernels.binary(power, x, y, out, b.stream()); };
  };
}

// All pairs of the values for which C's pow() has special rules, and of even and odd whole numbers.
Work raise_special(BinaryFunction power) {
  return [=](Bench& b) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    const Floats values = {0,
                           -0.0F,
                           1,
                           -1,
                           2,
                           -2,
                           3,
                           -3,
                           0.5F,
                           -0.5F,
                           1.5F,
                           -1.5F,
                           8,
                           1e-3F,
                           kInfinity,
                           -kInfinity,
                           std::numeric_limits<float>::quiet_NaN()};
    const auto count = static_cast<Index>(values.size());
    const InputView x = b.in({count, 1}, values), y = b.in({count}, values);
    const OutputView out = b.out({count, count}, uniform(count * count, 3));
    return [=, &b] { b.kernels.binary(power, x, y, out, b.stream()); };
  };
}

// For numbers that are often equal, and NaN.
Work maximum_slope(Index count) {
  return [=](Bench& b) {
    Floats values = whole_numbers(count, 1);
    for (std::size_t i = 0; i < values.size(); i += 5) values[i] = kNan;
    const InputView x = b.in({count}, values), y = b.in({count}, whole_numbers(count, 2));
    const OutputView out = b.out({count}, uniform(count, 3));
    return [=, &b] { b.kernels.binary(BinaryFunction::kMaximumSlope, x, y, out, b.stream()); };
  };
}

Work in_place(BinaryFunction function, Index count) {
  return [=](Bench& b) {
    const OutputView first = b.out({count}, uniform(count, 1)), second = b.out({count}, uniform(count, 2));
    const InputView other = b.in({count}, uniform(count, 3));
    return [=, &b] {
      b.kernels.binary(function, first, other, first, b.stream());
      b.kernels.binary(function, other, second, second, b.stream());
    };
  };
}

std::vector<std::uint8_t> mask_of(Index count) {
  std::vector<std::uint8_t> mask(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < mask.size(); ++i) mask[i] = static_cast<std::uint8_t>(i * 7 % 3 == 0 ? 0 : i % 255 + 1);
  return mask;
}

Work choose(const Shape& condition, const Broadcast& of) {
  return [=](Bench& b) {
    const InputView mask(b.plain_in(mask_of(condition.count())), condition);
    const InputView x = b.in(of.a, uniform(of.a.count(), 1)), y = b.in(of.b, uniform(of.b.count(), 2));
    const OutputView out = b.out(of.out, uniform(of.out.count(), 3));
    return [=, &b] { b.kernels.where(mask, x, y, out, b.stream()); };
  };
}

Work compare_all(const Broadcast& of) {
  return [=](Bench& b) {
    const InputView x = b.in(of.a, whole_numbers(of.a.count(), 1)), y = b.in(of.b, whole_numbers(of.b.count(), 2));
    std::vector<OutputView> masks;
    for (std::size_t i = 0; i < std::size(kComparisons); ++i)
      masks.emplace_back(b.plain_out(std::vector<std::uint8_t>(static_cast<std::size_t>(of.out.count()), 9)), of.out);
    return [=, &b] {
      for (std::size_t i = 0; i < masks.size(); ++i) b.kernels.compare(kComparisons[i], x, y, masks[i], b.stream());
    };
  };
}

}  // namespace

void binary(Cases& cases) {
  for (const Broadcast& of : operand_shapes())
    for (std::size_t i = 0; i < std::size(kFunctions); ++i)
      cases.test(fmt::format("{} of {}", kFunctionNames[i], text_of(of)), {kExact}, compute(kFunctions[i], of));
  cases.test("slope of the maximum", {kExact}, maximum_slope(1003));
  for (const BinaryFunction function : kFunctions) {
    cases.test("one element off", {kExact}, compute(function, {{1024}, {1024}, {1024}}, Place::kOneElementOff));
    cases.test("in place", {kExact}, in_place(function, 1024));
  }
  for (std::size_t i = 0; i < std::size(kPowers); ++i) {
    for (const Broadcast& of : operand_shapes())
      cases.test(fmt::format("{} of {}", kPowerNames[i], text_of(of)), {power_bound(cases)}, raise(kPowers[i], of));
    cases.test(fmt::format("{}, one element off", kPowerNames[i]), {power_bound(cases)},
               raise(kPowers[i], {{1024}, {1024}, {1024}}, Place::kOneElementOff));
    cases.test(fmt::format("{}, special values", kPowerNames[i]), {power_bound(cases)}, raise_special(kPowers[i]));
  }
  const Index n = cases.sizes.elements;
  for (std::size_t i = 0; i < std::size(kPowers); ++i)
    cases.large_row(kPowerNames[i], 3 * cases.element_bytes(), raise(kPowers[i], {{n}, {n}, {n}}));
  for (std::size_t i = 0; i < std::size(kFunctions); ++i)
    cases.large_row(kFunctionNames[i], 3 * cases.element_bytes(), compute(kFunctions[i], {{n}, {n}, {n}}));
  const Index rows = n / 256;
  const double bytes = 2 * cases.element_bytes();
  cases.large_row("a * b, b a row of 256", bytes, compute(BinaryFunction::kMul, {{rows, 256}, {256}, {rows, 256}}));
  cases.large_row("a * b, b a column", bytes, compute(BinaryFunction::kMul, {{rows, 256}, {rows, 1}, {rows, 256}}));
  cases.large_row("a * b, b a scalar", bytes, compute(BinaryFunction::kMul, {{n}, {}, {n}}));
}

void compare(Cases& cases) {
  for (const Broadcast& of : operand_shapes()) cases.test(text_of(of), {kExact}, compare_all(of));
  const Index n = cases.sizes.elements;
  cases.large_row("a > b, a >= b, a == b, a != b", 8 * cases.element_bytes() + 4, compare_all({{n}, {n}, {n}}));
}

void where(Cases& cases) {
  for (const Broadcast& of : operand_shapes()) {
    cases.test(text_of(of), {kExact}, choose(of.out, of));
    cases.test(text_of(of) + ", one condition", {kExact}, choose({}, of));
  }
  cases.test("a condition a row", {kExact}, choose({9, 1}, {{9, 32}, {32}, {9, 32}}));
  const Index n = cases.sizes.elements;
  cases.large_row("where", 3 * cases.element_bytes() + 1, choose({n}, {{n}, {n}, {n}}));
}

}  // namespace lockstep::testing::cases
