// The errors of kernels/cpu/math/vector_math.h and vector_power.h, against the C library in double.
#include "kernels/cpu/math/vector_math.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "kernels/cpu/math/vector_inverse_root.h"
#include "kernels/cpu/math/vector_normal.h"
#include "kernels/cpu/math/vector_power.h"
#include "kernels/cpu/math/vector_sine.h"

namespace lockstep {
namespace {

namespace vm = vector_math;

constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

// The largest error over `steps` equal steps, in units in the last place of the float nearest to the value.
double largest_error(float low, float high, const std::function<float(float)>& function,
                     const std::function<double(double)>& exact) {
  constexpr int kSteps = 200'003;
  double worst = 0;
  for (int i = 0; i <= kSteps; ++i) {
    const float x = low + (high - low) * (static_cast<float>(i) / kSteps);
    const double wanted = exact(double{x});
    const auto nearest = std::abs(static_cast<float>(wanted));
    const double unit = double{std::nextafter(nearest, std::numeric_limits<float>::infinity())} - double{nearest};
    worst = std::max(worst, std::abs(double{function(x)} - wanted) / unit);
  }
  return worst;
}

TEST(VectorMath, ExpIsWithinOneUnit) {
  const auto exp = [](float x) { return vm::exp(x); };
  const auto exact = [](double x) { return std::exp(x); };
  EXPECT_LE(largest_error(-87, 88.7F, exp, exact), 1.1);
  EXPECT_LE(largest_error(-1, 1, exp, exact), 1.1);
  EXPECT_LE(largest_error(-103, -87, exp, exact), 1.1);  // subnormal numbers
  EXPECT_EQ(vm::exp(0), 1);
  EXPECT_EQ(vm::exp(88.8F), std::numeric_limits<float>::infinity());
  EXPECT_EQ(vm::exp(-104.5F), 0);
  EXPECT_EQ(vm::exp(-std::numeric_limits<float>::infinity()), 0);
  EXPECT_TRUE(std::isnan(vm::exp(std::numeric_limits<float>::quiet_NaN())));
}

TEST(VectorMath, ExpOfNormalResults) {
  const auto exp = [](float x) { return vm::normal_exp(x); };
  EXPECT_LE(largest_error(-87.3F, 88.3F, exp, [](double x) { return std::exp(x); }), 1.1);
  for (const float x : {-87.7F, -88.0F, -90.0F, -3e38F, -kInfinity}) EXPECT_EQ(exp(x), 0) << x;
  for (const float x : {88.4F, 89.0F, 3e38F, kInfinity}) EXPECT_EQ(exp(x), kInfinity) << x;
  EXPECT_EQ(exp(0), 1);
}

TEST(VectorMath, LogIsWithinTwoUnits) {
  const auto log = [](float x) { return vm::log(x); };
  const auto exact = [](double x) { return std::log(x); };
  EXPECT_LE(largest_error(0.5F, 2, log, exact), 2);
  EXPECT_LE(largest_error(1e-3F, 100, log, exact), 2);
  EXPECT_LE(largest_error(1e-38F, 1e-37F, log, exact), 2);
  EXPECT_LE(largest_error(1e-42F, 1e-38F, log, exact), 2);
  EXPECT_LE(largest_error(1e30F, 3.4e38F, log, exact), 2);
  EXPECT_LE(largest_error(0.99F, 1.01F, log, exact), 2);
  EXPECT_EQ(vm::log(1), 0);
  EXPECT_EQ(vm::log(0), -kInfinity);
  EXPECT_EQ(vm::log(-0.0F), -kInfinity);
  EXPECT_EQ(vm::log(kInfinity), kInfinity);
  for (const float x : {-1e-42F, -1.0F, -kInfinity}) EXPECT_TRUE(std::isnan(vm::log(x))) << x;
}

TEST(VectorMath, TanhAndSigmoid) {
  const auto tanh = [](float x) { return vm::tanh(x); };
  const auto exact = [](double x) { return std::tanh(x); };
  EXPECT_LE(largest_error(-10, 10, tanh, exact), 6);
  EXPECT_LE(largest_error(-1e-3F, 1e-3F, tanh, exact), 6);
  EXPECT_LE(largest_error(1e-42F, 1e-37F, tanh, exact), 6);
  for (const float x : {9.5F, 10.0F, 11.0F, 3e38F, kInfinity}) {
    EXPECT_EQ(vm::tanh(x), 1) << x;
    EXPECT_EQ(vm::tanh(-x), -1) << x;
  }
  EXPECT_TRUE(std::signbit(vm::tanh(-0.0F)));
  const auto sigmoid = [](float x) { return vm::sigmoid(x); };
  EXPECT_LE(largest_error(-86.9F, 90, sigmoid, [](double x) { return 1 / (1 + std::exp(-x)); }), 3);
  EXPECT_EQ(vm::sigmoid(kInfinity), 1);
  EXPECT_EQ(vm::sigmoid(-kInfinity), 0);
  EXPECT_EQ(vm::sigmoid(-88.5F), 0);
}

TEST(VectorMath, TheNormalDistribution) {
  const auto cdf = [](float x) { return vm::normal_distribution(x).cdf; };
  const auto exact = [](double x) { return std::erfc(-x / std::sqrt(2.0)) / 2; };
  EXPECT_LE(largest_error(-1, 20, cdf, exact), 4);
  EXPECT_LE(largest_error(-3, -1, cdf, exact), 11);
  EXPECT_LE(largest_error(
                -1, 1, [](float x) { return vm::normal_distribution(x).gaussian; },
                [](double x) { return std::exp(-x * x / 2); }),
            3);
  for (float x = -12.9F; x < -3; x += 1e-4F) {
    const double wanted = exact(double{x}), gaussian = std::exp(-double{x} * x / 2);
    ASSERT_NEAR(double{cdf(x)}, wanted, 1e-5 * wanted) << x;
    ASSERT_NEAR(double{vm::normal_distribution(x).gaussian}, gaussian, 1e-5 * gaussian) << x;
  }
  EXPECT_EQ(cdf(0), 0.5F);
  for (const float x : {13.25F, 100.0F, 3e38F, kInfinity}) {
    EXPECT_EQ(cdf(x), 1) << x;
    EXPECT_EQ(cdf(-x), 0) << x;
    EXPECT_EQ(vm::normal_distribution(x).gaussian, 0) << x;
  }
}

TEST(VectorMath, ErfIsWithinFourUnits) {
  const auto erf = [](float x) { return vm::erf(x); };
  const auto exact = [](double x) { return std::erf(x); };
  EXPECT_LE(largest_error(-5, 5, erf, exact), 4);
  EXPECT_LE(largest_error(-1e-3F, 1e-3F, erf, exact), 3);
  for (const float x : {4.0F, 100.0F, 3e38F, kInfinity}) {
    EXPECT_EQ(erf(x), 1) << x;
    EXPECT_EQ(erf(-x), -1) << x;
  }
}

TEST(VectorMath, Expm1AndLog1p) {
  const auto expm1 = [](float x) { return vm::expm1(x); };
  const auto exact_expm1 = [](double x) { return std::expm1(x); };
  EXPECT_LE(largest_error(-30, 88.7F, expm1, exact_expm1), 2);
  EXPECT_LE(largest_error(-1, 1, expm1, exact_expm1), 2);
  EXPECT_LE(largest_error(-1e-6F, 1e-6F, expm1, exact_expm1), 1);
  EXPECT_EQ(vm::expm1(88.8F), kInfinity);
  for (const float x : {-25.0F, -3e38F, -kInfinity}) EXPECT_EQ(vm::expm1(x), -1) << x;
  const auto log1p = [](float x) { return vm::log1p(x); };
  const auto exact_log1p = [](double x) { return std::log1p(x); };
  EXPECT_LE(largest_error(-0.999F, 3, log1p, exact_log1p), 3);
  EXPECT_LE(largest_error(-1e-3F, 1e-3F, log1p, exact_log1p), 3);
  EXPECT_LE(largest_error(1, 3e38F, log1p, exact_log1p), 3);
  EXPECT_EQ(vm::log1p(-1), -kInfinity);
  EXPECT_EQ(vm::log1p(kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(vm::log1p(-1.5F)));
}

TEST(VectorMath, SineAndCosineOfModerateAngles) {
  for (float x = -vm::kLargestAngle; x <= vm::kLargestAngle; x += 0.37F) {
    ASSERT_NEAR(double{vm::sin(x)}, std::sin(double{x}), 2.4e-7 * std::abs(std::sin(double{x})) + 1e-12) << x;
    ASSERT_NEAR(double{vm::cos(x)}, std::cos(double{x}), 2.4e-7 * std::abs(std::cos(double{x})) + 1e-12) << x;
  }
  EXPECT_LE(largest_error(
                -1, 1, [](float x) { return vm::sin(x); }, [](double x) { return std::sin(x); }),
            2);
  EXPECT_LE(largest_error(
                -8, 8, [](float x) { return vm::cos(x); }, [](double x) { return std::cos(x); }),
            2);
  EXPECT_EQ(vm::sin(0), 0);
  EXPECT_EQ(vm::cos(0), 1);
}

// The function that GELU uses: the same cdf without a division, whose error below -5.5 is far below the rounding errors
// of float32's GELU.
TEST(VectorMath, TheNormalDistributionAlone) {
  const auto cdf = [](float x) { return vm::normal_cdf(x); };
  const auto exact = [](double x) { return std::erfc(-x / std::sqrt(2.0)) / 2; };
  EXPECT_LE(largest_error(-1, 20, cdf, exact), 5);
  EXPECT_LE(largest_error(-3, -1, cdf, exact), 18);
  for (float x = -5.5F; x < -3; x += 1e-5F) ASSERT_NEAR(double{cdf(x)}, exact(double{x}), 6e-6 * exact(double{x})) << x;
  for (float x = -13.5F; x < -5.5F; x += 1e-4F) ASSERT_NEAR(double{cdf(x)}, exact(double{x}), 1e-13) << x;
  EXPECT_EQ(cdf(0), 0.5F);
  for (const float x : {13.0F, 100.0F, 3e38F, kInfinity}) {
    EXPECT_EQ(cdf(x), 1) << x;
    EXPECT_EQ(cdf(-x), 0) << x;
  }
}

// Tests every 3989th float.
TEST(VectorMath, PowersAreWithinAUnit) {
  for (const double exponent : {-1.5, -1.0, 0.5, 1.0, 3.0, 7.5, 0.01, 100.0, -2.25e-3, 0.1, 256.0, -300.25, 1e5}) {
    const vm::PowerRule rule = vm::power_rule(exponent);
    for (std::uint32_t bits = 1; bits < 0x7f800000U; bits += 3989) {
      const auto x = std::bit_cast<float>(bits);
      const double wanted = std::pow(double{x}, exponent);
      const auto nearest = static_cast<float>(wanted);
      const float got = vm::power(x, rule);
      if (!std::isfinite(nearest) || !std::isfinite(got)) {
        ASSERT_EQ(got, nearest) << x << " to the " << exponent;
        continue;
      }
      const double unit = double{std::nextafter(nearest, kInfinity)} - double{nearest};
      ASSERT_LE(std::abs(double{got} - wanted), unit) << x << " to the " << exponent;
    }
  }
}

TEST(VectorMath, PowersOfSpecialValuesAreThoseOfC) {
  const float bases[] = {0.0F, -0.0F,  kInfinity, -kInfinity, kNan,   1,          -1,   2,
                         -2,   1e-40F, -1e-40F,   3e38F,      -3e38F, 0.9999999F, -0.5F};
  for (const float exponent :
       {-3.0F, -2.0F, -1.0F, -0.5F, 0.5F, 1.0F, 2.0F, 3.0F, 1e-20F, 1e-45F, 1e30F, -1e30F, 16777215.0F})
    for (const float base : bases) {
      const auto wanted = static_cast<float>(std::pow(double{base}, double{exponent}));
      const float got = vm::power(base, vm::power_rule(double{exponent}));
      EXPECT_EQ(std::isnan(got), std::isnan(wanted)) << base << " to the " << exponent;
      if (std::isnan(wanted)) continue;
      EXPECT_EQ(std::signbit(got), std::signbit(wanted)) << base << " to the " << exponent;
      EXPECT_FLOAT_EQ(got, wanted) << base << " to the " << exponent;
    }
}

// Exponents of which a float has only the first digits: 1 / 3 is another number in float.
TEST(VectorMath, PowersTakeExponentsInDouble) {
  for (const double exponent : {1.0 / 3, -0.7, 33.3}) {
    const vm::PowerRule rule = vm::power_rule(exponent);
    for (float x = 0.2F; x < 12; x *= 1.01F) {
      const double wanted = std::pow(double{x}, exponent);
      ASSERT_NEAR(double{vm::power(x, rule)}, wanted, 1.2e-7 * wanted) << x << " to the " << exponent;
      ASSERT_EQ(vm::power(x, rule), vm::power_of_normal(x, rule.exponent, rule.exponent_low))
          << x << " to the " << exponent;
    }
  }
}

// Exponents that differ from element to element: all pairs of special values, with the same results as for a single
// exponent.
TEST(VectorMath, PowersOfAnyTwoAreThoseOfC) {
  const std::vector<float> values = {0.0F,        -0.0F,    kInfinity, -kInfinity, kNan,       1,          -1,
                                     2,           -2,       3,         -3,         0.5F,       -0.5F,      2.5F,
                                     -2.5F,       1e-40F,   -1e-40F,   3e38F,      -3e38F,     0.9999999F, 1.0000001F,
                                     -1.0000001F, 16777215, -16777215, 16777216,   8388607.5F, 1e-20F};
  for (const float base : values)
    for (const float exponent : values) {
      const auto wanted = static_cast<float>(std::pow(double{base}, double{exponent}));
      const float got = vm::power(base, exponent);
      EXPECT_EQ(std::isnan(got), std::isnan(wanted)) << base << " to the " << exponent;
      if (std::isnan(wanted)) continue;
      EXPECT_EQ(std::signbit(got), std::signbit(wanted)) << base << " to the " << exponent;
      EXPECT_FLOAT_EQ(got, wanted) << base << " to the " << exponent;
    }
  for (const float exponent : {-1.5F, 0.5F, 3.0F, 100.0F, -3e9F, 3e38F, 1e-40F})
    for (std::uint32_t bits = 1; bits < 0x7f800000U; bits += 39989) {
      const auto x = std::bit_cast<float>(bits);
      ASSERT_EQ(vm::power(x, exponent), vm::power(x, vm::power_rule(double{exponent}))) << x << " to the " << exponent;
      if (vm::place_among_normals(x) < vm::kNormals) {
        ASSERT_EQ(vm::power(x, exponent), vm::power_of_normal(x, exponent)) << x;
      }
    }
}

TEST(VectorMath, InverseRootsOfNormalNumbers) {
  for (std::uint32_t bits = vm::kSmallestNormalBits; bits < 0x7f800000U; bits += 997) {
    const auto s = std::bit_cast<float>(bits);
    const double root = 1 / std::sqrt(double{s}), power = root * std::sqrt(root);
    ASSERT_NEAR(double{vm::inverse_square_root(s)}, root, 3e-7 * root) << s;
    ASSERT_NEAR(double{vm::inverse_three_quarters_power(s)}, power, 3e-7 * power) << s;
  }
}

TEST(VectorMath, NormalNumbersAreFoundAmongOthers) {
  for (const float s : {1.17549435e-38F, 1.0F, 3.4e38F}) EXPECT_LT(vm::place_among_normals(s), vm::kNormals) << s;
  for (const float s : {0.0F, -0.0F, 1.17549421e-38F, -1.0F, kInfinity, -kInfinity, kNan})
    EXPECT_GE(vm::place_among_normals(s), vm::kNormals) << s;
}

// NaN stays NaN, whatever its sign and payload.
TEST(VectorMath, NanStaysNan) {
  for (const std::uint32_t bits :
       {0x7fc00000U, 0xffc00000U, 0x7fc00001U, 0x7fc00002U, 0x7fffffffU, 0xffffffffU, 0x7fd55555U}) {
    const auto x = std::bit_cast<float>(bits);
    for (const float value :
         {vm::exp(x), vm::normal_exp(x), vm::log(x), vm::tanh(x), vm::sigmoid(x), vm::normal_distribution(x).cdf,
          vm::normal_distribution(x).gaussian, vm::normal_cdf(x), vm::power(x, vm::power_rule(-1.5)), vm::erf(x),
          vm::expm1(x), vm::log1p(x), vm::power(x, vm::power_rule(3)), vm::power(x, 3.0F), vm::power(2.0F, x)})
      EXPECT_TRUE(std::isnan(value)) << std::hex << bits;
  }
}

}  // namespace
}  // namespace lockstep
