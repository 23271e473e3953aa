// The errors of the vector loops' exponentials, and the ends of their ranges.
#include "kernels/cpu/math/vector_math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/cpu/math/rows.h"
#include "kernels/cpu/simd/by_isa.h"

namespace lockstep::fast {
namespace {

TEST(Exponential, IsWithinTwoUnitsInTheLastPlace) {
  for (float x = -87; x < 88.7F; x += 0.00131F) {
    const double exact = std::exp(double{x});
    const auto nearest = static_cast<float>(exact);
    const double unit = double{std::nextafter(nearest, std::numeric_limits<float>::infinity())} - nearest;
    ASSERT_LE(std::abs(vector_math::exp(x) - exact), 2 * unit) << "of " << x;
  }
}

TEST(Exponential, EndsWhereFloatsDo) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(vector_math::exp(0), 1);
  EXPECT_EQ(vector_math::exp(-kInfinity), 0);
  EXPECT_EQ(vector_math::exp(-105), 0);
  EXPECT_NEAR(vector_math::exp(-100), std::exp(-100.0), 1e-44);  // a denormal
  EXPECT_EQ(vector_math::exp(89), kInfinity);
  EXPECT_EQ(vector_math::exp(kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(vector_math::exp(std::numeric_limits<float>::quiet_NaN())));
}

// Those of a softmax, whose arguments are differences with a rounding error of their own.
TEST(Exponential, OfARowIsAsExactAsItsDifferences) {
  const auto exponentials = LOCKSTEP_BY_ISA(fast::row_exponentials);
  constexpr int kCount = 85;
  for (float first = -87; first < 0; first += 0.0117F) {
    float x[kCount], y[kCount];
    double sum = 0;
    for (int i = 0; i < kCount; ++i) x[i] = std::min(0.0F, first + static_cast<float>(i) * 0.01F);
    const float total = exponentials(x, 0, kCount, y);
    for (int i = 0; i < kCount; ++i) {
      const double exact = std::exp(double{x[i]});
      ASSERT_NEAR(double{y[i]}, exact, exact * (1.2e-7 - 4e-9 * double{x[i]})) << "of " << x[i];
      sum += exact;
    }
    ASSERT_NEAR(total, sum, 1e-6 * sum) << "from " << first;
  }
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  float row[] = {0, -88, -3e38F, -kInfinity, kNan, -kNan};
  exponentials(row, 0, 6, row);
  EXPECT_EQ(row[0], 1);
  for (int i = 1; i < 4; ++i) EXPECT_EQ(row[i], 0) << i;
  for (int i = 4; i < 6; ++i) EXPECT_TRUE(std::isnan(row[i])) << i;
}

}  // namespace
}  // namespace lockstep::fast
