// Max pooling and local response normalisation.
#include <fmt/format.h>

#include <limits>

#include "kernels/cases/shapes.h"
#include "tests/kernels/cpu/exact.h"

namespace lockstep::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Pooled {
  Floats y, x_grad;
  std::vector<std::uint16_t> argmax;
};

Pooled pool(const KernelTable& kernels, const Pool2dShape& s, const Floats& x, const Floats& y_grad, bool accumulate) {
  Pooled result{Floats(y_shape(s).count()), uniform(x_shape(s).count(), 9),
                std::vector<std::uint16_t>(y_shape(s).count(), 999)};
  kernels.max_pool2d(s, in(x, x_shape(s)), out(result.y, y_shape(s)), result.argmax.data(), stream());
  kernels.max_pool2d_backward(s, in(y_grad, y_shape(s)), result.argmax.data(),
                              out(result.x_grad, x_shape(s), accumulate), stream());
  return result;
}

TEST(PlainMaxPool, MatchesValuesByHand) {
  // A 3 x 3 image, window 2 x 2, stride 2, padding 1: 2 x 2 windows whose corners lie outside.
  const Pool2dShape shape{1, 3, 3, 1, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1};
  const Floats x = {-5, 1, 1, -2, 4, 4, -2, 4, 3}, y_grad = {1, 2, 4, 8};
  const Pooled result = pool(plain(), shape, x, y_grad, false);
  // Padding is never larger than -5; of equal values in a window the first one is chosen.
  EXPECT_EQ(result.y, (Floats{-5, 1, -2, 4}));
  EXPECT_EQ(result.argmax, (std::vector<std::uint16_t>{3, 2, 1, 0}));
  EXPECT_EQ(result.x_grad, (Floats{1, 2, 0, 4, 8, 0, 0, 0, 0}));
}

TEST(MaxPool, IsThePlainKernels) {
  for (const Pool2dShape& s : pool2d_shapes())
    for (const bool accumulate : {false, true}) {
      const std::string name = name_of(s);
      // Whole numbers are often equal: the first of equal values must be chosen.
      const Floats x = whole_numbers(x_shape(s).count(), 1), y_grad = uniform(y_shape(s).count(), 2);
      const Pooled expected = pool(plain(), s, x, y_grad, accumulate),
                   actual = pool(tested(), s, x, y_grad, accumulate);
      expect_same_bits(actual.y, expected.y, name);
      EXPECT_EQ(actual.argmax, expected.argmax) << name;
      expect_same_bits(actual.x_grad, expected.x_grad, name + ", gradient");
    }
}

TEST(MaxPool, KeepsNanAndMinusInfinity) {
  const Pool2dShape shape{1, 2, 2, 20, 1, 1, 3, 3, 1, 1, 1, 1, 0, 0};
  for (const KernelTable* kernels : {&plain(), &tested()}) {
    Floats x(80, 1);
    x[20 + 7] = std::numeric_limits<float>::quiet_NaN();
    for (int pixel = 0; pixel < 4; ++pixel) x[pixel * 20 + 3] = -kInfinity;
    const Pooled result = pool(*kernels, shape, x, Floats(20, 1), false);
    EXPECT_TRUE(std::isnan(result.y[7]));
    EXPECT_EQ(result.argmax[7], 5);
    EXPECT_EQ(result.y[3], -kInfinity);
    EXPECT_EQ(result.argmax[3], 4) << "the first position inside the image";
  }
}

TEST(PlainLrn, FollowsTensorFlowsFormula) {
  // bias 1, alpha 2, beta 0.5, radius 1 over (1, 2, 3): s = 1 + 2 * (5, 14, 13) = (11, 29, 27).
  const LrnParams params{1, 3, 1, 1, 2, 0.5F};
  const Floats x = {1, 2, 3}, y_grad = {1, 0, 0};
  Floats y(3), scale(3), x_grad(3);
  const Shape of = {1, 3};
  plain().lrn(params, in(x, of), out(y, of), out(scale, of), stream());
  EXPECT_EQ(scale, (Floats{11, 29, 27}));
  expect_close(y, {1 / std::sqrt(11.0F), 2 / std::sqrt(29.0F), 3 / std::sqrt(27.0F)}, 1e-6F, "y");
  // dy_0/dx_0 = s^-1/2 - 2 x_0 x_0 s^-3/2, dy_0/dx_1 = -2 x_0 x_1 s^-3/2, dy_0/dx_2 = 0.
  const float power = std::pow(11.0F, -1.5F);
  plain().lrn_backward(params, in(x, of), in(y, of), in(scale, of), in(y_grad, of), out(x_grad, of), stream());
  expect_close(x_grad, {1 / std::sqrt(11.0F) - 2 * power, -4 * power, 0}, 1e-6F, "x_grad");
}

TEST(Lrn, IsCloseToThePlainKernels) {
  for (const LrnParams& params : lrn_params()) {
    const std::string name = name_of(params);
    const Shape of = {params.rows, params.channels};
    const Index count = of.count();
    const bool accumulate = params.rows % 2 == 1;
    const Floats x = uniform(count, 1), y_grad = uniform(count, 2);
    const auto run = [&](const KernelTable& kernels) {
      std::vector<Floats> results = {Floats(count), Floats(count), uniform(count, 3)};
      kernels.lrn(params, in(x, of), out(results[0], of), out(results[1], of), stream());
      kernels.lrn_backward(params, in(x, of), in(results[0], of), in(results[1], of), in(y_grad, of),
                           out(results[2], of, accumulate), stream());
      return results;
    };
    const auto expected = run(plain()), actual = run(tested());
    for (std::size_t i = 0; i < expected.size(); ++i)
      expect_close(actual[i], expected[i], 2e-6F, fmt::format("{}, result {}", name, i));
  }
}

}  // namespace
}  // namespace lockstep::testing
