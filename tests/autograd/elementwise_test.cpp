// Functions of two tensors: broadcasting is compared with index arithmetic, gradients with finite differences.
#include "lockstep/autograd/elementwise.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <limits>

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/ops.h"
#include "tests/autograd/gradient_check.h"
#include "tests/autograd/refusal.h"

namespace lockstep {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The element of a row-major array that corresponds to an element of the broadcast result.
float at(const Tensor& x, const Shape& result, std::int64_t element) {
  std::int64_t offset = 0, stride = 1;
  for (std::size_t back = 1; back <= result.dims(); ++back) {
    const std::int64_t index = element % result[result.dims() - back];
    element /= result[result.dims() - back];
    if (back > x.shape().dims()) continue;
    const std::int64_t extent = x.shape()[x.shape().dims() - back];
    offset += extent == 1 ? 0 : index * stride;
    stride *= extent;
  }
  return x.data<float>()[offset];
}

struct BroadcastCase {
  const char* name;
  Shape a, b, result;
};

const BroadcastCase kBroadcasts[] = {{"equal", {3, 4}, {3, 4}, {3, 4}},
                                     {"scalar", {3, 4}, {}, {3, 4}},
                                     {"scalar_first", {}, {5}, {5}},
                                     {"one_element", {3, 4}, {1, 1, 1}, {1, 3, 4}},
                                     {"last_dimension", {2, 3, 17}, {17}, {2, 3, 17}},
                                     {"columns", {3, 4}, {3, 1}, {3, 4}},
                                     {"outer_product", {5, 1}, {1, 7}, {5, 7}},
                                     {"middle", {2, 1, 3}, {4, 1}, {2, 4, 3}},
                                     {"channels", {2, 3, 4, 5}, {3, 1, 1}, {2, 3, 4, 5}},
                                     {"six", {2, 1, 3, 1, 2, 1}, {1, 2, 1, 3, 1, 2}, {2, 2, 3, 3, 2, 2}},
                                     {"empty", {0, 4}, {4}, {0, 4}},
                                     {"empty_by_one", {3, 0}, {3, 1}, {3, 0}}};

TEST(Broadcasting, FindsTheOperandsOfEachElement) {
  manual_seed(3);
  for (const BroadcastCase& c : kBroadcasts) {
    const Tensor a = random_leaf(c.a), b = random_leaf(c.b, 0.5f, 2);
    const Tensor results[] = {a + b, a - b, a * b, a / b};
    for (std::size_t r = 0; r < 4; ++r) {
      ASSERT_EQ(results[r].shape(), c.result) << c.name;
      for (std::int64_t i = 0; i < results[r].count(); ++i) {
        const float x = at(a, c.result, i), y = at(b, c.result, i);
        const float wanted[] = {x + y, x - y, x * y, x / y};
        ASSERT_EQ(results[r].data<float>()[i], wanted[r]) << c.name << ", element " << i << " of result " << r;
      }
    }
    const Tensor masks[] = {eq(a, b), ne(a, b), gt(a, b), ge(a, b), lt(a, b), le(a, b)};
    for (std::int64_t i = 0; i < masks[0].count(); ++i) {
      const float x = at(a, c.result, i), y = at(b, c.result, i);
      const bool wanted[] = {x == y, x != y, x > y, x >= y, x < y, x <= y};
      for (std::size_t m = 0; m < 6; ++m)
        ASSERT_EQ(masks[m].data<std::uint8_t>()[i] != 0, wanted[m]) << c.name << ", mask " << m;
    }
  }
}

TEST(Broadcasting, GradientsAgreeWithFiniteDifferences) {
  manual_seed(4);
  for (const BroadcastCase& c : kBroadcasts) {
    if (c.result.count() == 0) continue;
    SCOPED_TRACE(c.name);
    const Tensor a = random_leaf(c.a), b = random_leaf(c.b, 1, 2);
    check_gradients(
        {a, b}, [&] { return weigh(a + b); }, 0.1f);
    check_gradients(
        {a, b}, [&] { return weigh(a - b); }, 0.1f);
    check_gradients(
        {a, b}, [&] { return weigh(a * b); }, 1e-2f);
    check_gradients(
        {a, b}, [&] { return weigh(a / b); }, 1e-2f);
    check_gradients(
        {a, b}, [&] { return weigh(b - a); }, 0.1f);
    const Tensor base = random_leaf(c.a, 0.5F, 2);
    check_gradients(
        {base, b}, [&] { return weigh(pow(base, b)); }, 1e-2f);
  }
}

// base, exponent, power and both gradients, as PyTorch 2.15 prints them.
TEST(Power, AtItsEdgesIsPyTorchs) {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  const float rows[][5] = {{0, 0, 1, 0, 0},
                           {0, 1, 0, 1, 0},
                           {0, 2, 0, 0, 0},
                           {0, 0.5F, 0, kInf, 0},
                           {0, -1, kInf, -kInf, -kInf},
                           {-2, 3, -8, 12, kNan},
                           {-2, 2, 4, -4, kNan},
                           {-2, -1, -0.5F, -0.25F, kNan},
                           {-2, 0, 1, 0, kNan},
                           {-2, 0.5F, kNan, kNan, kNan},
                           {2, 0, 1, 0, 0.69314718F},
                           {1, 5, 1, 5, 0},
                           {2, -1.5F, 0.35355338F, -0.26516503F, 0.24506453F},
                           {kInf, 0, 1, 0, kInf},
                           {0, kInf, 0, kNan, 0},
                           {kNan, 0, 1, 0, kNan},
                           {1, kNan, 1, kNan, 0}};
  const auto expect_equal = [](float got, float wanted) {
    EXPECT_TRUE(std::isnan(wanted) ? std::isnan(got) : got == wanted || std::abs(got - wanted) < 1e-6F)
        << got << " where " << wanted;
  };
  for (const auto& [base, exponent, power, base_grad, exponent_grad] : rows) {
    SCOPED_TRACE(fmt::format("{} to the {}", base, exponent));
    const Tensor x = scalar_leaf(base), p = scalar_leaf(exponent);
    const Tensor y = pow(x, p);
    y.backward();
    expect_equal(y.item(), power);
    expect_equal(grad(x).item(), base_grad);
    expect_equal(grad(p).item(), exponent_grad);
    expect_equal(pow(base, p).item(), power);
  }
}

TEST(Power, OfTwoTensorsBroadcasts) {
  const Tensor bases = Tensor::from<float>(std::vector<float>{2, -3, 0}, {3, 1}),
               exponents = Tensor::from<float>(std::vector<float>{0, 1, 3}, {3});
  const Tensor y = pow(bases, exponents);
  EXPECT_EQ(y.shape(), (Shape{3, 3}));
  EXPECT_EQ(std::vector<float>(y.span<float>().begin(), y.span<float>().end()),
            (std::vector<float>{1, 2, 8, 1, -3, -27, 1, 0, 0}));
  const Tensor powers_of_two = pow(2, cast(exponents, DType::kBFloat16));
  EXPECT_EQ(powers_of_two.dtype(), DType::kBFloat16);
  EXPECT_EQ(cast(powers_of_two, DType::kFloat32).span<float>()[2], 8);
  EXPECT_NE(refusal([&] { pow(Tensor::zeros({2}), Tensor::zeros({3})); }).find("pow: shapes (2) and (3) do not match"),
            std::string::npos);
}

TEST(Broadcasting, GradientsOfOneTensorUsedTwice) {
  manual_seed(5);
  const Tensor a = random_leaf({3, 4}, 1, 2), b = random_leaf({3, 4}, 1, 2);
  check_gradients({a}, [&] { return weigh(a + a); });
  check_gradients({a}, [&] { return weigh(a * a); });
  check_gradients({a}, [&] { return weigh(pow(a, a)); });
  check_gradients({b}, [&] { return weigh(pow(1.5F, b)); });
  check_gradients({a, b}, [&] { return weigh((a - b) * (a + b) / b); });
  check_gradients({a, b}, [&] { return weigh(a + b) + weigh((b - a) * b); });
}

TEST(Broadcasting, OfNothingTheRepeatedOneGetsZeros) {
  const Tensor none = random_leaf({0, 3}), row = random_leaf({3});
  sum(none * row).backward();
  EXPECT_EQ(grad(none).shape(), (Shape{0, 3}));
  const Tensor of_row = grad(row);
  for (const float value : of_row.span<float>()) EXPECT_EQ(value, 0);
}

TEST(Where, TakesEachElementFromOneOfBoth) {
  manual_seed(6);
  const Tensor a = random_leaf({2, 3, 4}), b = random_leaf({4});
  const Tensor mask = gt(a, 0);
  const Tensor y = where(mask, a, b);
  for (std::int64_t i = 0; i < y.count(); ++i)
    ASSERT_EQ(y.data<float>()[i], a.data<float>()[i] > 0 ? a.data<float>()[i] : b.data<float>()[i % 4]);
  check_gradients(
      {a, b}, [&] { return weigh(where(mask, a * 2.f, b)); }, 0.1f);
  const std::array<std::int8_t, 3> rows = {-1, 0, 1};  // int8, one per row
  const Tensor chosen = where(Tensor::from<std::int8_t>(rows, {3, 1}), a, b);
  for (std::int64_t i = 0; i < y.count(); ++i)
    ASSERT_EQ(chosen.data<float>()[i], i / 4 % 3 != 1 ? a.data<float>()[i] : b.data<float>()[i % 4]);
}

TEST(Where, KeepsNanOfWhatIsNotChosenOutOfTheGradient) {
  const Tensor x = Tensor::full({2}, 4);
  x.span<float>()[0] = -1;
  require_grad(x);
  sum(where(gt(x, 0), x, Tensor::full({}, kNan))).backward();
  EXPECT_EQ(grad(x).span<float>()[0], 0);
  EXPECT_EQ(grad(x).span<float>()[1], 1);
}

TEST(Extremes, OfTwoTensorsArePyTorchs) {
  manual_seed(9);
  for (const BroadcastCase& c : kBroadcasts) {
    SCOPED_TRACE(c.name);
    const Tensor a = spaced_leaf(c.a, 1), b = spaced_leaf(c.b, 2);
    const Tensor larger = maximum(a, b), smaller = minimum(a, b);
    ASSERT_EQ(larger.shape(), c.result);
    for (std::int64_t i = 0; i < larger.count(); ++i) {
      ASSERT_EQ(larger.data<float>()[i], std::max(at(a, c.result, i), at(b, c.result, i)));
      ASSERT_EQ(smaller.data<float>()[i], std::min(at(a, c.result, i), at(b, c.result, i)));
    }
  }
  const Tensor a = spaced_leaf({3, 40}, 3), b = Tensor::empty({40});
  for (std::size_t i = 0; i < 40; ++i) b.span<float>()[i] = 0.01F * static_cast<float>(i % 7) - 0.03F;
  require_grad(b);
  check_gradients(
      {a, b}, [&] { return weigh(maximum(a, b)) + weigh(minimum(b, a)) + weigh(minimum(a, b) * a); }, 1e-4f, 2e-2);
  // values and gradients of torch.maximum([1, 2, nan, 3], [1, 3, 1, nan]), and of torch.minimum
  const Tensor x = Tensor::from<float>(std::array{1.0F, 2.0F, kNan, 3.0F}, {4}),
               y = Tensor::from<float>(std::array{1.0F, 3.0F, 1.0F, kNan}, {4});
  require_grad(x), require_grad(y);
  const Tensor larger = maximum(x, y);
  EXPECT_EQ(larger.span<float>()[1], 3);
  EXPECT_TRUE(std::isnan(larger.span<float>()[2]) && std::isnan(larger.span<float>()[3]));
  larger.backward({.gradient = Tensor::full({4}, 1)});
  EXPECT_THAT(grad(x).span<float>(), ::testing::ElementsAre(0.5F, 0, 1, 1));
  EXPECT_THAT(grad(y).span<float>(), ::testing::ElementsAre(0.5F, 1, 1, 1));
  clear_grad(x), clear_grad(y);
  minimum(x, y).backward({.gradient = Tensor::full({4}, 1)});
  EXPECT_THAT(grad(x).span<float>(), ::testing::ElementsAre(0.5F, 1, 1, 1));
  EXPECT_THAT(grad(y).span<float>(), ::testing::ElementsAre(0.5F, 0, 1, 1));
}

TEST(Comparisons, AsOperators) {
  const Tensor a = Tensor::from<float>(std::array{1.0F, 2.0F, 3.0F}, {3}), b = Tensor::full({3}, 2);
  const auto is = [](const Tensor& mask, std::array<std::uint8_t, 3> wanted) {
    return std::equal(wanted.begin(), wanted.end(), mask.span<std::uint8_t>().begin());
  };
  EXPECT_TRUE(is(a > b, {0, 0, 1}) && is(a >= b, {0, 1, 1}) && is(a < b, {1, 0, 0}) && is(a <= b, {1, 1, 0}));
  EXPECT_TRUE(is(a > 2, {0, 0, 1}) && is(a >= 2, {0, 1, 1}) && is(a < 2, {1, 0, 0}) && is(a <= 2, {1, 1, 0}));
  EXPECT_TRUE(is(2 < a, {0, 0, 1}) && is(2 <= a, {0, 1, 1}) && is(2 > a, {1, 0, 0}) && is(2 >= a, {1, 1, 0}));
}

TEST(CompoundAssignment, RebindsTheHandle) {
  manual_seed(10);
  const Tensor leaf = random_leaf({3, 4}), row = random_leaf({4}, 1, 2);
  check_gradients({leaf, row}, [&] {
    Tensor x = leaf * 2;
    const Tensor before = x;
    x += row, x *= row, x -= leaf, x /= row;
    x += 1, x *= 3, x -= 0.5F, x /= 2;
    EXPECT_FALSE(x.is_same(before));
    EXPECT_EQ(before.span<float>()[5], 2 * leaf.span<float>()[5]);  // the old values stay
    return weigh(x);
  });
  Tensor weight = leaf;
  const auto add_to_leaf = [&] { weight += row; };
  set_name(leaf, "hidden.weight");
  EXPECT_THAT(refusal(add_to_leaf), ::testing::HasSubstr("+=: parameter 'hidden.weight' of shape (3, 4) requires"));
  const NoGrad no_grad;
  EXPECT_THAT(refusal(add_to_leaf), ::testing::HasSubstr("let an optimizer update it, or copy_from()"));
  EXPECT_TRUE(weight.is_same(leaf));
  Tensor small = Tensor::zeros({4});
  EXPECT_THAT(refusal([&] {
                small -= Tensor::zeros({3, 4});
              }),
              ::testing::HasSubstr("-=: the left side is (4), the result would be (3, 4)"));
}

TEST(Comparisons, WithAConstantAndNan) {
  const std::array<float, 4> values = {-1, 0.5f, 2, kNan};
  const Tensor x = Tensor::from<float>(values, {4});
  const auto is = [](const Tensor& mask, std::array<std::uint8_t, 4> wanted) {
    return std::equal(wanted.begin(), wanted.end(), mask.span<std::uint8_t>().begin());
  };
  EXPECT_TRUE(is(gt(x, 0.5f), {0, 0, 1, 0}));
  EXPECT_TRUE(is(ge(x, 0.5f), {0, 1, 1, 0}));
  EXPECT_TRUE(is(lt(x, 0.5f), {1, 0, 0, 0}));
  EXPECT_TRUE(is(le(x, 0.5f), {1, 1, 0, 0}));
  EXPECT_TRUE(is(eq(x, 0.5f), {0, 1, 0, 0}));
  EXPECT_TRUE(is(ne(x, 0.5f), {1, 0, 1, 1}));
  EXPECT_TRUE(is(gt(cast(x, DType::kBFloat16), 0.5f), {0, 0, 1, 0}));
}

// 16 bits: computed in float32 and rounded once.
TEST(HalfPrecision, IsRoundedOnce) {
  manual_seed(7);
  for (const DType type : {DType::kFloat16, DType::kBFloat16}) {
    const Tensor x = cast(random_leaf({33}, 0.5f, 2), type), row = cast(random_leaf({33}, 0.5f, 2), type);
    const auto same = [&](const Tensor& half, const Tensor& wide) {
      const Tensor rounded = cast(cast(wide, type), DType::kFloat32), widened = cast(half, DType::kFloat32);
      EXPECT_EQ(half.dtype(), type);
      for (std::int64_t i = 0; i < wide.count(); ++i) ASSERT_EQ(widened.data<float>()[i], rounded.data<float>()[i]);
    };
    const Tensor wide_x = cast(x, DType::kFloat32), wide_row = cast(row, DType::kFloat32);
    same(gelu(x), gelu(wide_x));
    same(x * row, wide_x * wide_row);
    same(x / row, wide_x / wide_row);
    same(sum(x), sum(wide_x));
    same(where(gt(x, 1), x, row), where(gt(wide_x, 1), wide_x, wide_row));
  }
}

TEST(Refusals, NameTheElementwiseOperator) {
  const Tensor x = Tensor::zeros({2, 3}), y = Tensor::zeros({4, 3}), half = Tensor::zeros({2, 3}, DType::kFloat16);
  EXPECT_THAT(refusal([&] { mul(x, y); }),
              ::testing::HasSubstr("mul: shapes (2, 3) and (4, 3) do not match: extents 2 and 4"));
  EXPECT_THAT(refusal([&] { div(x, half); }), ::testing::HasSubstr("div: float32 and float16 differ"));
  EXPECT_THAT(refusal([&] { sub(x, Tensor()); }), ::testing::HasSubstr("sub: b is undefined"));
  EXPECT_THAT(refusal([&] { gelu(Tensor::zeros({2}, DType::kInt64)); }),
              ::testing::HasSubstr("gelu: x must be float32"));
  EXPECT_THAT(refusal([&] { where(x, x, x); }),
              ::testing::HasSubstr("where: condition must be uint8 or int8, got float32"));
}

}  // namespace
}  // namespace lockstep
