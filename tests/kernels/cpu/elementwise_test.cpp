// Elementwise kernels, bias, losses and the optimizer's step.
#include <fmt/format.h>

#include <array>
#include <limits>

#include "kernels/cases/shapes.h"
#include "tests/kernels/cpu/exact.h"

namespace lockstep::testing {
namespace {

constexpr float kQuietNan = std::numeric_limits<float>::quiet_NaN();

TEST(PlainElementwise, DoesWhatItsNameSays) {
  const Floats a = {1, -2, 3}, b = {10, 20, 30};
  Floats result(3), sum = {1, 1, 1}, y = {1, 2, 3, 4}, bias_grad = {5, 5};
  plain().fill(out(result), 2.5F, stream());
  EXPECT_EQ(result, (Floats{2.5F, 2.5F, 2.5F}));
  plain().add(in(a), in(b), out(result), stream());
  EXPECT_EQ(result, (Floats{11, 18, 33}));
  plain().add(in(sum), in(a), out(sum), stream());
  EXPECT_EQ(sum, (Floats{2, -1, 4}));
  plain().scale(in(a), 2, out(result, {3}, true), stream());
  EXPECT_EQ(result, (Floats{13, 14, 39}));
  plain().relu(in(a), out(result), stream());
  EXPECT_EQ(result, (Floats{1, 0, 3}));
  Floats grad = {7, 8, 9};
  plain().relu_backward(in(result), out(grad), stream());
  EXPECT_EQ(grad, (Floats{7, 0, 9}));
  plain().bias(out(y, {2, 2}), in(b, {2}), stream());
  EXPECT_EQ(y, (Floats{11, 22, 13, 24}));
  plain().bias_backward(in(y, {2, 2}), out(bias_grad, {2}, true), stream());
  EXPECT_EQ(bias_grad, (Floats{29, 51}));
}

TEST(Elementwise, IsThePlainKernels) {
  for (const Index count : kCounts)
    for (const bool accumulate : {false, true}) {
      const Floats a = uniform(count, 1), b = uniform(count, 2);
      const auto run = [&](const KernelTable& kernels) {
        std::vector<Floats> results(6, uniform(count, 3));
        kernels.fill(out(results[0]), -1.5F, stream());
        kernels.add(in(a), in(b), out(results[1]), stream());
        kernels.add(in(results[2]), in(a), out(results[2]), stream());
        kernels.scale(in(a), 0.3F, out(results[3], {count}, accumulate), stream());
        kernels.relu(in(a), out(results[4]), stream());
        kernels.relu_backward(in(a), out(results[5]), stream());
        return results;
      };
      const auto expected = run(plain()), actual = run(tested());
      for (std::size_t i = 0; i < expected.size(); ++i)
        expect_same_bits(actual[i], expected[i], fmt::format("{} elements, operator {}", count, i));
    }
}

// Some rows have infinite, subnormal, zero or negative scales, or only NaN: there results are those of the plain
// kernels, and elsewhere in the block the bits are the same as without such rows.
TEST(Lrn, OfScalesThatAreNoNormalNumbers) {
  constexpr Index kRows = 4, kChannels = 20;
  const Shape of = {kRows, kChannels};
  for (const float beta : {0.75F, 0.5F})
    for (const float bias : {0.0F, 1e-40F, -0.1F}) {
      const LrnParams params{kRows, kChannels, 1, bias, 0.1F, beta};
      Floats x = uniform(kRows * kChannels, 1);
      for (Index c = 0; c < kChannels; ++c) x[static_cast<std::size_t>(c)] = 1.5F + 0.1F * static_cast<float>(c);
      const Floats y_grad = uniform(kRows * kChannels, 2);
      const auto run = [&](const KernelTable& kernels) {
        Floats y(x.size()), scale(x.size()), x_grad(x.size());
        kernels.lrn(params, in(x, of), out(y, of), out(scale, of), stream());
        kernels.lrn_backward(params, in(x, of), in(y, of), in(scale, of), in(y_grad, of), out(x_grad, of), stream());
        return std::array{y, x_grad};
      };
      const std::array ordinary = run(tested());
      for (std::size_t i = 20; i < 40; ++i) x[i] = i < 30 ? 0 : i == 35 ? 3e38F : i == 38 ? kQuietNan : 1e-3F;
      const std::array actual = run(tested()), expected = run(plain());
      for (std::size_t k = 0; k < 2; ++k)
        for (std::size_t i = 0; i < x.size(); ++i) {
          const float wanted = expected[k][i], got = actual[k][i];
          if (i < 20) {
            ASSERT_EQ(got, ordinary[k][i]) << i;
          }
          if (std::isnan(wanted) || std::isinf(wanted)) {
            ASSERT_TRUE(std::isnan(wanted) ? std::isnan(got) : got == wanted)
                << i << ": " << got << ", expected " << wanted;
          } else {
            ASSERT_NEAR(got, wanted, 1e-5F * std::abs(wanted) + 1e-6F) << i << " of beta " << beta << ", bias " << bias;
          }
        }
    }
}

// log(1 + e^-30) is 9.4e-14: a product of such 1 + z keeps its excess over 1. For x = 0 the product grows as fast as
// possible.
TEST(BinaryCrossEntropy, KeepsTheDigitsOfSmallLossesAndOfManyLargeOnes) {
  for (const Index count : {1, 15, 16, 513, 8192, 8193, 100'003}) {
    Floats loss(1), x(static_cast<std::size_t>(count)), t(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = i % 2 == 0 ? 30.0F : -30.0F, t[i] = i % 2 == 0 ? 1.0F : 0.0F;
    tested().binary_cross_entropy_with_logits(in(x), in(t), true, {loss.data(), {}}, stream());
    EXPECT_NEAR(loss[0], std::log1p(std::exp(-30.0)), 1e-6 * std::exp(-30.0)) << count;
    std::fill(x.begin(), x.end(), 0.0F);
    tested().binary_cross_entropy_with_logits(in(x), in(t), true, {loss.data(), {}}, stream());
    EXPECT_FLOAT_EQ(loss[0], static_cast<float>(std::log(2.0))) << count;
  }
}

TEST(Elementwise, ReluLetsNanThroughAndWorksInPlace) {
  for (const KernelTable* kernels : {&plain(), &tested()}) {
    Floats values(40, -1);
    values[3] = kQuietNan, values[20] = 2, values[37] = kQuietNan;
    kernels->relu(in(values), out(values), stream());
    for (Index i = 0; i < 40; ++i) {
      if (i == 3 || i == 37)
        EXPECT_TRUE(std::isnan(values[i])) << i;
      else
        EXPECT_EQ(values[i], i == 20 ? 2 : 0) << i;
    }
  }
}

// Far from zero its terms are products of 0 and an overflow. There are enough numbers to test both vectors and the
// remainder.
TEST(GeluTanh, HasASlopeFarFromZero) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  Floats x, slope(133), ones(133, 1);
  while (x.size() < slope.size())
    x.insert(x.end(), {16, -16, 1e6F, -1e6F, 5e19F, -5e19F, 3e38F, -3e38F, kInfinity, -kInfinity, kQuietNan});
  x.resize(slope.size());
  for (const KernelTable* kernels : {&plain(), &tested()}) {
    kernels->unary_backward({UnaryFunction::kGeluTanh}, in(x), in(ones), out(slope), stream());
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (std::isnan(x[i]))
        EXPECT_TRUE(std::isnan(slope[i]));
      else
        EXPECT_EQ(slope[i], x[i] > 0 ? 1 : 0) << x[i] << (kernels == &plain() ? ", plain" : "");
    }
  }
}

TEST(Bias, IsThePlainKernels) {
  for (const Index rows : {0, 1, 3, 4, 257, 1030})
    for (const Index channels : {1, 3, 5, 64, 70})
      for (const bool accumulate : {false, true}) {
        const Floats values = whole_numbers(rows * channels, 1), bias = whole_numbers(channels, 2);
        Floats expected = values, actual = values, expected_grad = bias, actual_grad = bias;
        plain().bias(out(expected, {rows, channels}), in(bias), stream());
        tested().bias(out(actual, {rows, channels}), in(bias), stream());
        plain().bias_backward(in(values, {rows, channels}), out(expected_grad, {channels}, accumulate), stream());
        tested().bias_backward(in(values, {rows, channels}), out(actual_grad, {channels}, accumulate), stream());
        expect_same_bits(actual, expected, fmt::format("bias {} x {}", rows, channels));
        expect_same_bits(actual_grad, expected_grad, fmt::format("bias gradient {} x {}", rows, channels));
      }
}

TEST(CrossEntropy, MatchesValuesByHand) {
  // softmax(0, ln 3) = (1/4, 3/4); softmax(1000, 1000) = (1/2, 1/2) without overflow.
  const Floats logits = {0, std::log(3.0F), 1000, 1000};
  const std::vector<Index> labels = {1, 0};
  const InputView targets(labels.data(), {2});
  const float loss_grad = 2;
  for (const KernelTable* kernels : {&plain(), &tested()}) {
    float loss = 0, divisor = 0;
    Floats statistics(4), grad = {0, 0, 10, 10};
    kernels->softmax_cross_entropy({}, in(logits, {2, 2}), targets, {}, {&loss, {}}, {&divisor, {}},
                                   out(statistics, {2, 2}), stream());
    EXPECT_EQ(divisor, 2);
    EXPECT_NEAR(loss, (std::log(4.0 / 3.0) + std::log(2.0)) / 2, 1e-6);
    expect_close(statistics, {std::log(3.0F), 0.75F, 1000, 0.5F}, 1e-6F, "largest logits, and 1 / sums");
    kernels->softmax_cross_entropy_backward({}, in(logits, {2, 2}), in(statistics, {2, 2}), targets, {}, {&divisor, {}},
                                            {&loss_grad, {}}, out(grad, {2, 2}, true), stream());
    expect_close(grad, {0.25F, -0.25F, 9.5F, 10.5F}, 1e-6F, "gradient, accumulated");
    kernels->softmax_cross_entropy_backward({}, in(logits, {2, 2}), in(statistics, {2, 2}), targets, {}, {&divisor, {}},
                                            {&loss_grad, {}}, out(grad, {2, 2}), stream());
    expect_close(grad, {0.25F, -0.25F, -0.5F, 0.5F}, 1e-6F, "gradient");
  }
}

TEST(CrossEntropy, ShowsALogitThatIsNotANumber) {
  const Floats logits = {0, kQuietNan, 1};
  const Index label = 0;
  float loss = 0, divisor = 0;
  Floats statistics(2);
  tested().softmax_cross_entropy({}, in(logits, {1, 3}), {&label, {1}}, {}, {&loss, {}}, {&divisor, {}},
                                 out(statistics, {1, 2}), stream());
  EXPECT_TRUE(std::isnan(loss));
}

TEST(L2Loss, IsThePlainKernels) {
  const Floats three_four = {3, 4};
  float loss = 0;
  plain().l2_loss(in(three_four), {&loss, {}}, stream());
  EXPECT_EQ(loss, 12.5F);
  const float loss_grad = 0.5F;
  for (const Index count : kCounts)
    for (const bool accumulate : {false, true}) {
      const Floats x = whole_numbers(count, 1);
      float expected = -1, actual = -1;
      Floats expected_grad = whole_numbers(count, 2), actual_grad = expected_grad;
      plain().l2_loss(in(x), {&expected, {}}, stream());
      tested().l2_loss(in(x), {&actual, {}}, stream());
      EXPECT_EQ(actual, expected) << count;
      plain().scale_by(in(x), {&loss_grad, {}}, out(expected_grad, {count}, accumulate), stream());
      tested().scale_by(in(x), {&loss_grad, {}}, out(actual_grad, {count}, accumulate), stream());
      expect_same_bits(actual_grad, expected_grad, "l2 gradient");
    }
}

TEST(PlainSgd, FollowsTheFormula) {
  Floats weight = {1, 2}, grad = {0.5F, -1}, momentum = {4, 8};
  const UpdateTensor tensor{weight.data(), grad.data(), {momentum.data()}, 2};
  const float lr = 0.5F;
  plain().sgd_step(std::span(&tensor, 1), {{&lr, 2}, 0.25F, false}, stream());
  // g = grad + 2 w = (2.5, 3); v = v / 4 + g = (3.5, 5); w -= v / 2.
  EXPECT_EQ(momentum, (Floats{3.5F, 5}));
  EXPECT_EQ(weight, (Floats{-0.75F, -0.5F}));
  weight = {1, 2}, momentum = {4, 8};
  plain().sgd_step(std::span(&tensor, 1), {{&lr, 2}, 0.25F, true}, stream());
  EXPECT_EQ(weight, (Floats{1 - (2.5F + 3.5F / 4) / 2, 2 - (3 + 5.0F / 4) / 2}));
}

TEST(Sgd, UpdatesToTheBitAsThePlainKernel) {
  for (const bool with_momentum : {false, true})
    for (const bool nesterov : {false, true})
      for (const float decay : {0.0F, 5e-4F}) {
        const auto run = [&](const KernelTable& kernels) {
          std::vector<Floats> state;
          std::vector<UpdateTensor> tensors;
          state.reserve(3 * kCounts.size());
          for (const Index count : kCounts)
            for (unsigned seed = 1; seed <= 3; ++seed) state.push_back(uniform(count, seed));
          for (std::size_t i = 0; i < kCounts.size(); ++i)
            tensors.push_back({state[3 * i].data(), state[3 * i + 1].data(), {state[3 * i + 2].data()}, kCounts[i]});
          const float lr = 0.1F;
          for (int step = 0; step < 5; ++step)
            kernels.sgd_step(tensors, {{&lr, decay}, with_momentum ? 0.9F : 0, nesterov}, stream());
          return state;
        };
        const auto expected = run(plain()), actual = run(tested());
        for (std::size_t i = 0; i < expected.size(); ++i)
          expect_same_bits(actual[i], expected[i], fmt::format("state {}", i));
      }
}

}  // namespace
}  // namespace lockstep::testing
