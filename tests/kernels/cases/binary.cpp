// Two operands, broadcast: the plain kernels' bits.
#include <limits>

#include "tests/kernels/cases/cases.h"

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

constexpr BinaryFunction kFunctions[] = {BinaryFunction::kAdd, BinaryFunction::kSub, BinaryFunction::kMul, BinaryFunction::kDiv};
constexpr Comparison kComparisons[] = {Comparison::kEqual, Comparison::kNotEqual, Comparison::kGreater, Comparison::kGreaterEqual};
constexpr const char* kFunctionNames[] = {"a + b", "a - b", "a * b", "a / b"};

std::string text_of(const Broadcast& of) { return fmt::format("{} and {}", of.a.text(), of.b.text()); }

Work compute(BinaryFunction function, const Broadcast& of, Place place = Place::kAligned) {
  return [=](Bench& b) {
    const InputView x = b.in(of.a, some(of.a, 1), place), y = b.in(of.b, some(of.b, 2));
    const OutputView out = b.out(of.out, uniform(of.out.count(), 3));
    return [=, &b] { b.kernels.binary(function, x, y, out, b.stream()); };
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
    for (const BinaryFunction function : kFunctions)
      cases.test(fmt::format("{} of {}", kFunctionNames[static_cast<int>(function)], text_of(of)), {kExact}, compute(function, of));
  for (const BinaryFunction function : kFunctions) {
    cases.test("one element off", {kExact}, compute(function, {{1024}, {1024}, {1024}}, Place::kOneElementOff));
    cases.test("in place", {kExact}, in_place(function, 1024));
  }
  const Index n = cases.sizes.elements;
  for (const BinaryFunction function : kFunctions)
    cases.large_row(kFunctionNames[static_cast<int>(function)], 3 * cases.element_bytes(), compute(function, {{n}, {n}, {n}}));
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
