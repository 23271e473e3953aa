// Functions of one tensor: values are compared with formulas in double, gradients with finite differences.
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

struct UnaryCase {
  const char* name;
  std::function<Tensor(const Tensor&)> function;
  std::function<double(double)> formula;
  float low, high;          // where the function is smooth
  bool is_float32 = false;  // under an AutoCast, also of 16-bit input: the table of docs/gpu.md
};

std::ostream& operator<<(std::ostream& out, const UnaryCase& c) { return out << c.name; }

double normal_cdf(double x) { return (1 + std::erf(x / std::sqrt(2.0))) / 2; }

class Unary : public ::testing::TestWithParam<UnaryCase> {};

TEST_P(Unary, HasTheFormulasValues) {
  const UnaryCase& c = GetParam();
  const Tensor x = Tensor::empty({1003});
  for (std::size_t i = 0; i < 1003; ++i) x.span<float>()[i] = c.low + (c.high - c.low) * static_cast<float>(i) / 1002;
  const Tensor y = c.function(x);
  EXPECT_EQ(y.shape(), x.shape());
  for (std::size_t i = 0; i < 1003; ++i) {
    const double wanted = c.formula(double{x.span<float>()[i]});
    ASSERT_NEAR(y.span<float>()[i], wanted, 1e-6 * (1 + std::abs(wanted))) << "x = " << x.span<float>()[i];
  }
}

TEST_P(Unary, AgreesWithFiniteDifferences) {
  manual_seed(1);
  const Tensor x = random_leaf({3, 5, 7}, GetParam().low, GetParam().high);
  check_gradients(
      {x}, [&] { return weigh(GetParam().function(x)); }, 2e-3f);
  const Tensor none = random_leaf({0, 3});
  sum(GetParam().function(none)).backward();
  EXPECT_EQ(grad(none).shape(), (Shape{0, 3}));
}

// A tensor with two uses: what is saved for backward is read twice.
TEST_P(Unary, GradientsOfTwoUsesAddUp) {
  manual_seed(2);
  const Tensor x = random_leaf({4, 4}, GetParam().low, GetParam().high);
  check_gradients(
      {x}, [&] { return weigh(GetParam().function(x)) + weigh(mul(GetParam().function(x), x)); }, 2e-3f);
}

TEST_P(Unary, ComputesInItsTypeUnderAutoCast) {
  for (const DType type : {DType::kBFloat16, DType::kFloat16}) {
    const Tensor narrow = cast(Tensor::full({2, 3}, GetParam().high), type),
                 wide = Tensor::full({2, 3}, GetParam().high);
    require_grad(narrow);
    EXPECT_EQ(GetParam().function(detach(narrow)).dtype(), type) << "without an AutoCast";
    const AutoCast half(type);
    const Tensor y = GetParam().function(narrow);
    EXPECT_EQ(y.dtype(), GetParam().is_float32 ? DType::kFloat32 : type);
    EXPECT_EQ(GetParam().function(wide).dtype(), DType::kFloat32);
    y.backward({.gradient = cast(Tensor::full(y.shape(), 1), y.dtype())});
    EXPECT_EQ(grad(narrow).dtype(), type);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Functions, Unary,
    ::testing::Values(
        UnaryCase{"gelu", [](const Tensor& x) { return gelu(x); }, [](double x) { return x * normal_cdf(x); }, -4, 4},
        UnaryCase{"gelu_tanh", [](const Tensor& x) { return gelu(x, GeluApproximation::kTanh); },
                  [](double x) {
                    return x / 2 * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
                  },
                  -4, 4},
        UnaryCase{"silu", [](const Tensor& x) { return silu(x); }, [](double x) { return x / (1 + std::exp(-x)); }, -6,
                  6},
        UnaryCase{"tanh", [](const Tensor& x) { return tanh(x); }, [](double x) { return std::tanh(x); }, -3, 3},
        UnaryCase{"sigmoid", [](const Tensor& x) { return sigmoid(x); },
                  [](double x) { return 1 / (1 + std::exp(-x)); }, -5, 5},
        UnaryCase{"leaky_relu_above", [](const Tensor& x) { return leaky_relu(x, 0.2f); }, [](double x) { return x; },
                  0.1f, 2},
        UnaryCase{"leaky_relu_below", [](const Tensor& x) { return leaky_relu(x, 0.2f); },
                  [](double x) { return 0.2 * x; }, -2, -0.1f},
        UnaryCase{"exp", [](const Tensor& x) { return exp(x); }, [](double x) { return std::exp(x); }, -3, 2, true},
        UnaryCase{"ln", [](const Tensor& x) { return ln(x); }, [](double x) { return std::log(x); }, 0.3f, 5, true},
        UnaryCase{"sqrt", [](const Tensor& x) { return sqrt(x); }, [](double x) { return std::sqrt(x); }, 0.3f, 5},
        UnaryCase{"square", [](const Tensor& x) { return pow(x, 2); }, [](double x) { return x * x; }, -2, 2, true},
        UnaryCase{"cube", [](const Tensor& x) { return pow(x, 3); }, [](double x) { return x * x * x; }, -2, 2, true},
        UnaryCase{"pow", [](const Tensor& x) { return pow(x, -1.5f); }, [](double x) { return std::pow(x, -1.5); },
                  0.5f, 3, true},
        UnaryCase{"abs", [](const Tensor& x) { return abs(x); }, [](double x) { return -x; }, -2, -0.1f},
        UnaryCase{"neg", [](const Tensor& x) { return -x; }, [](double x) { return -x; }, -2, 2},
        UnaryCase{"reciprocal", [](const Tensor& x) { return 3.f / x; }, [](double x) { return 3 / x; }, 0.5f, 3, true},
        UnaryCase{"subtract_from", [](const Tensor& x) { return 3.f - x; }, [](double x) { return 3 - x; }, -3, 3},
        UnaryCase{"affine", [](const Tensor& x) { return (x - 1.f) / 4.f + 2.f; },
                  [](double x) { return (x - 1) / 4 + 2; }, -3, 3},
        UnaryCase{"sin", [](const Tensor& x) { return sin(x); }, [](double x) { return std::sin(x); }, -9, 9},
        UnaryCase{"cos", [](const Tensor& x) { return cos(x); }, [](double x) { return std::cos(x); }, -9, 9},
        UnaryCase{"erf", [](const Tensor& x) { return erf(x); }, [](double x) { return std::erf(x); }, -3, 3},
        UnaryCase{"log1p", [](const Tensor& x) { return log1p(x); }, [](double x) { return std::log1p(x); }, -0.7f, 5,
                  true},
        UnaryCase{"expm1", [](const Tensor& x) { return expm1(x); }, [](double x) { return std::expm1(x); }, -3, 2,
                  true},
        UnaryCase{"rsqrt", [](const Tensor& x) { return rsqrt(x); }, [](double x) { return 1 / std::sqrt(x); }, 0.3f, 5,
                  true},
        UnaryCase{"softplus", [](const Tensor& x) { return softplus(x, 1.5f); },
                  [](double x) { return std::log1p(std::exp(1.5 * x)) / 1.5; }, -5, 5, true},
        UnaryCase{"softplus_beyond_its_threshold", [](const Tensor& x) { return softplus(x, 2, 1); },
                  [](double x) { return x; }, 0.6f, 5, true},
        UnaryCase{"elu", [](const Tensor& x) { return elu(x, 0.7f); },
                  [](double x) { return x > 0 ? x : double{0.7f} * std::expm1(x); }, -4, -0.1f},
        UnaryCase{"elu_above", [](const Tensor& x) { return elu(x, 0.7f); }, [](double x) { return x; }, 0.1f, 4},
        UnaryCase{"hardswish", [](const Tensor& x) { return hardswish(x); }, [](double x) { return x * (x + 3) / 6; },
                  -2.9f, 2.9f},
        UnaryCase{"hardswish_above", [](const Tensor& x) { return hardswish(x); }, [](double x) { return x; }, 3.1f, 9},
        UnaryCase{"hardsigmoid", [](const Tensor& x) { return hardsigmoid(x); }, [](double x) { return (x + 3) / 6; },
                  -2.9f, 2.9f},
        UnaryCase{"mish", [](const Tensor& x) { return mish(x); },
                  [](double x) { return x * std::tanh(std::log1p(std::exp(x))); }, -6, 6},
        UnaryCase{"relu6", [](const Tensor& x) { return relu6(x); }, [](double x) { return x; }, 0.1f, 5.9f},
        UnaryCase{"clamp", [](const Tensor& x) { return clamp(x, -2, 2); }, [](double x) { return x; }, -1.9f, 1.9f}),
    [](const auto& test) { return test.param.name; });

TEST(UnaryFunctions, AtTheEndsOfTheirDomains) {
  const float infinity = std::numeric_limits<float>::infinity();
  const auto at = [](auto function, float x) { return function(Tensor::full({}, x)).item(); };
  EXPECT_EQ(at([](const Tensor& x) { return exp(x); }, 100), infinity);
  EXPECT_EQ(at([](const Tensor& x) { return exp(x); }, -infinity), 0);
  EXPECT_EQ(at([](const Tensor& x) { return ln(x); }, 0), -infinity);
  EXPECT_EQ(at([](const Tensor& x) { return ln(x); }, infinity), infinity);
  EXPECT_TRUE(std::isnan(at([](const Tensor& x) { return ln(x); }, -1)));
  EXPECT_EQ(at([](const Tensor& x) { return tanh(x); }, -infinity), -1);
  EXPECT_EQ(at([](const Tensor& x) { return sigmoid(x); }, infinity), 1);
  EXPECT_EQ(at([](const Tensor& x) { return gelu(x); }, 50), 50);
  EXPECT_EQ(at([](const Tensor& x) { return gelu(x); }, -50), 0);
  EXPECT_EQ(at([](const Tensor& x) { return silu(x); }, -200), 0);
  for (const auto& function :
       {gelu(Tensor::full({}, kNan)), silu(Tensor::full({}, kNan)), tanh(Tensor::full({}, kNan)),
        exp(Tensor::full({}, kNan)), ln(Tensor::full({}, kNan)), leaky_relu(Tensor::full({}, kNan))})
    EXPECT_TRUE(std::isnan(function.item()));
  const Tensor zero = Tensor::zeros({1});
  require_grad(zero);
  sum(abs(zero)).backward();
  EXPECT_EQ(grad(zero).item(), 0);
}

// Values and gradients at kinks and ends, as PyTorch 2.15 gives them.
TEST(UnaryFunctions, AtTheirKinksArePyTorchs) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  struct Kink {
    const char* name;
    std::function<Tensor(const Tensor&)> function;
    float x, y, slope;
  };
  const auto clamped = [](const Tensor& x) { return clamp(x, -3, 3); };
  const auto raised = [](const Tensor& x) { return clamp(x, -3); };
  const auto lowered = [](const Tensor& x) { return clamp(x, {}, 3); };
  const std::vector<Kink> kinks = {{"hardswish", hardswish, -3, 0, 0},
                                   {"hardswish", hardswish, 3, 3, 1},
                                   {"hardsigmoid", hardsigmoid, -3, 0, 0},
                                   {"hardsigmoid", hardsigmoid, 3, 1, 0},
                                   {"relu6", relu6, 0, 0, 0},
                                   {"relu6", relu6, 6, 6, 0},
                                   {"relu6", relu6, 7, 6, 0},
                                   {"clamp", clamped, -3, -3, 0},
                                   {"clamp", clamped, 4, 3, 0},
                                   {"clamp", raised, -9, -3, 0},
                                   {"clamp", raised, 1e30F, 1e30F, 1},
                                   {"clamp", lowered, -1e30F, -1e30F, 1},
                                   {"clamp", lowered, 9, 3, 0},
                                   {"elu", [](const Tensor& x) { return elu(x); }, 0, 0, 1},
                                   {"elu", [](const Tensor& x) { return elu(x); }, -kInfinity, -1, 0},
                                   {"softplus", [](const Tensor& x) { return softplus(x); }, kInfinity, kInfinity, 1},
                                   {"softplus", [](const Tensor& x) { return softplus(x); }, -kInfinity, 0, 0},
                                   {"mish", mish, 1e30F, 1e30F, 1},
                                   {"log1p", log1p, -1, -kInfinity, kInfinity},
                                   {"log1p", log1p, kInfinity, kInfinity, 0},
                                   {"log1p", log1p, 1e-30F, 1e-30F, 1},
                                   {"expm1", expm1, -kInfinity, -1, 0},
                                   {"expm1", expm1, 1e-30F, 1e-30F, 1},
                                   {"erf", erf, kInfinity, 1, 0},
                                   {"rsqrt", rsqrt, 0, kInfinity, -kInfinity},
                                   {"sign", sign, -4, -1, 0},
                                   {"sign", sign, kNan, 0, 0},
                                   {"floor", floor, -1.5F, -2, 0},
                                   {"ceil", ceil, -1.5F, -1, 0},
                                   {"round", round, 2.5F, 2, 0},
                                   {"round", round, -3.5F, -4, 0}};
  for (const Kink& kink : kinks) {
    const Tensor x = scalar_leaf(kink.x);
    const Tensor y = kink.function(x);
    EXPECT_EQ(y.item(), kink.y) << kink.name << " of " << kink.x;
    y.backward();
    EXPECT_EQ(grad(x).item(), kink.slope) << kink.name << " of " << kink.x;
  }
  const std::function<Tensor(const Tensor&)> all[] = {sin,   cos,       erf,   log1p, expm1,
                                                      rsqrt, hardswish, relu6, mish,  round};
  for (const auto& function : all) EXPECT_TRUE(std::isnan(function(Tensor::full({}, kNan)).item()));
  EXPECT_THAT(refusal([] { clamp(Tensor::zeros({1}), {}); }), ::testing::HasSubstr("clamp: got neither"));
  EXPECT_THAT(refusal([] { softplus(Tensor::zeros({1}), 0); }),
              ::testing::HasSubstr("softplus: beta must be positive"));
}

TEST(UnaryFunctions, SinesOfAnyAngle) {
  const std::array<float, 6> angles = {65536.0F, 65537.0F, -1e6F, 1e20F, -3e38F, 12345.678F};
  const Tensor x = Tensor::from<float>(angles, {6}), sines = sin(x), cosines = cos(x);
  for (std::size_t i = 0; i < angles.size(); ++i) {
    EXPECT_NEAR(sines.span<float>()[i], std::sin(double{angles[i]}), 2e-7) << angles[i];
    EXPECT_NEAR(cosines.span<float>()[i], std::cos(double{angles[i]}), 2e-7) << angles[i];
  }
}

TEST(GatedFunctions, AgreeWithFiniteDifferences) {
  manual_seed(8);
  const Tensor x = random_leaf({3, 4, 6});
  for (const int dim : {-1, 1, 2}) check_gradients({x}, [&] { return weigh(glu(x, dim)); });
  EXPECT_EQ(glu(x, 1).shape(), (Shape{3, 2, 6}));
  const Tensor spaced = spaced_leaf({3, 4, 6}, 5), one = random_leaf({1}), channels = random_leaf({6});
  for (const Tensor& weight : {one, channels})
    check_gradients(
        {spaced, weight}, [&] { return weigh(prelu(spaced, weight)); }, 1e-3f);
  EXPECT_THAT(refusal([&] { glu(Tensor::zeros({3}), 0); }), ::testing::HasSubstr("must have an even extent"));
  EXPECT_THAT(refusal([&] { prelu(x, Tensor::zeros({4})); }),
              ::testing::HasSubstr("prelu: weight is (4), expected one element, or one for each channel"));
}

}  // namespace
}  // namespace lockstep
