// The error of the vector loops' exp(), and the ends of its range.
#include "kernels/cpu/math/vector_math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

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

}  // namespace
}  // namespace lockstep::fast
