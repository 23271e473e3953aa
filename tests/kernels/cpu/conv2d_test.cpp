// Convolutions and linear layers: the plain kernels are compared with sums by hand, the device's with the plain ones.
// The shapes here are summed directly and exactly; winograd_test.cpp has the others.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <thread>

#include "kernels/cases/shapes.h"
#include "kernels/cpu/conv/winograd/winograd.h"
#include "kernels/cpu/conv/winograd/winograd_narrow.h"
#include "tests/kernels/cpu/exact.h"

namespace lockstep::testing {
namespace {

std::vector<Conv2dShape> directly_summed_shapes() {
  std::vector<Conv2dShape> shapes = conv2d_shapes();
  std::erase_if(shapes, [](const Conv2dShape& s) { return winograd::suits(s) || winograd_narrow::suits(s); });
  return shapes;
}

TEST(PlainConv2d, MatchesSumsByHand) {
  // A 2 x 2 image of two channels, one zero row above and one zero column to the left, kernel 2 x 2.
  const Conv2dShape shape = conv2d_shape(1, 2, 2, 2, 1, 2, 2, 1, 1, {1, 1, 0, 0});
  const Floats x = {1, 2, 3, 4, 5, 6, 7, 8}, weight = {1, 10, 2, 20, 3, 30, 4, 40}, y_grad = {1, 0, 0, 2};
  Floats bias = {0.5F}, y(4), x_grad(8), weight_grad(8), bias_grad(1);
  plain().conv2d(shape, in(x, x_shape(shape)), in(weight, weight_shape(shape)), in(bias, bias_shape(shape)), false,
                 out(y, y_shape(shape)), stream());
  EXPECT_EQ(y, (Floats{84.5F, 235.5F, 302.5F, 650.5F}));
  bias = {-300};
  plain().conv2d(shape, in(x, x_shape(shape)), in(weight, weight_shape(shape)), in(bias, bias_shape(shape)), true,
                 out(y, y_shape(shape)), stream());
  EXPECT_EQ(y, (Floats{0, 0, 2, 350}));
  plain().conv2d_backward_data(shape, in(y_grad, y_shape(shape)), in(weight, weight_shape(shape)),
                               out(x_grad, x_shape(shape)), stream());
  EXPECT_EQ(x_grad, (Floats{6, 60, 4, 40, 6, 60, 8, 80}));
  plain().conv2d_backward_weights(shape, in(x, x_shape(shape)), in(y_grad, y_shape(shape)),
                                  out(weight_grad, weight_shape(shape)), out(bias_grad, bias_shape(shape)), stream());
  EXPECT_EQ(weight_grad, (Floats{2, 4, 6, 8, 10, 12, 15, 18}));
  EXPECT_EQ(bias_grad, (Floats{3}));
}

TEST(PlainLinear, MatchesSumsByHand) {
  const LinearShape shape{2, 3, 2};
  const Floats x = {1, 2, 3, 4, 5, 6}, weight = {1, 0, 2, -1, 1, 0}, bias = {10, -2}, y_grad = {1, 2, 0, 3};
  Floats y(4), x_grad(6), weight_grad(6), bias_grad = {100, 100};
  plain().linear(in(x, x_shape(shape)), in(weight, weight_shape(shape)), in(bias, bias_shape(shape)), true,
                 out(y, y_shape(shape)), stream());
  EXPECT_EQ(y, (Floats{17, 0, 26, 0}));
  plain().linear_backward_data(in(y_grad, y_shape(shape)), in(weight, weight_shape(shape)), out(x_grad, x_shape(shape)),
                               stream());
  EXPECT_EQ(x_grad, (Floats{-1, 2, 2, -3, 3, 0}));
  plain().linear_backward_weights(in(x, x_shape(shape)), in(y_grad, y_shape(shape)),
                                  out(weight_grad, weight_shape(shape)), out(bias_grad, bias_shape(shape), true),
                                  stream());
  EXPECT_EQ(weight_grad, (Floats{1, 2, 3, 14, 19, 24}));
  EXPECT_EQ(bias_grad, (Floats{101, 105}));
}

TEST(Conv2d, ForwardIsThePlainKernels) {
  for (const Conv2dShape& s : directly_summed_shapes())
    for (const bool relu : {false, true})
      for (const bool with_bias : {false, true}) {
        const Floats x = whole_numbers(x_shape(s).count(), 1), weight = whole_numbers(weight_shape(s).count(), 2),
                     bias = whole_numbers(s.out_channels, 3);
        Floats expected(y_shape(s).count(), 7), actual(y_shape(s).count(), 8);
        plain().conv2d(s, in(x, x_shape(s)), in(weight, weight_shape(s)),
                       with_bias ? in(bias, bias_shape(s)) : InputView(), relu, out(expected, y_shape(s)), stream());
        tested().conv2d(s, in(x, x_shape(s)), in(weight, weight_shape(s)),
                        with_bias ? in(bias, bias_shape(s)) : InputView(), relu, out(actual, y_shape(s)), stream());
        expect_same_bits(actual, expected, name_of(s));
      }
}

TEST(Conv2d, BackwardDataIsThePlainKernels) {
  for (const Conv2dShape& s : directly_summed_shapes())
    for (const bool accumulate : {false, true}) {
      const Floats y_grad = whole_numbers(y_shape(s).count(), 4), weight = whole_numbers(weight_shape(s).count(), 5);
      Floats expected = whole_numbers(x_shape(s).count(), 6), actual = expected;
      plain().conv2d_backward_data(s, in(y_grad, y_shape(s)), in(weight, weight_shape(s)),
                                   out(expected, x_shape(s), accumulate), stream());
      tested().conv2d_backward_data(s, in(y_grad, y_shape(s)), in(weight, weight_shape(s)),
                                    out(actual, x_shape(s), accumulate), stream());
      expect_same_bits(actual, expected, name_of(s));
    }
}

TEST(Conv2d, BackwardWeightsIsThePlainKernels) {
  for (const Conv2dShape& s : directly_summed_shapes())
    for (const bool accumulate : {false, true})
      for (const bool with_bias : {false, true}) {
        const Floats x = whole_numbers(x_shape(s).count(), 7), y_grad = whole_numbers(y_shape(s).count(), 8);
        Floats expected = whole_numbers(weight_shape(s).count(), 9), actual = expected;
        Floats expected_bias = whole_numbers(s.out_channels, 10), actual_bias = expected_bias;
        plain().conv2d_backward_weights(
            s, in(x, x_shape(s)), in(y_grad, y_shape(s)), out(expected, weight_shape(s), accumulate),
            with_bias ? out(expected_bias, bias_shape(s), !accumulate) : OutputView(), stream());
        tested().conv2d_backward_weights(
            s, in(x, x_shape(s)), in(y_grad, y_shape(s)), out(actual, weight_shape(s), accumulate),
            with_bias ? out(actual_bias, bias_shape(s), !accumulate) : OutputView(), stream());
        expect_same_bits(actual, expected, name_of(s));
        expect_same_bits(actual_bias, expected_bias, name_of(s) + ", bias");
      }
}

TEST(Linear, IsThePlainKernels) {
  for (const LinearShape& s : linear_shapes())
    for (const bool flag : {false, true}) {
      const std::string name = fmt::format("{}, {}", name_of(s), flag);
      const Floats x = whole_numbers(s.batch * s.in_features, 1),
                   weight = whole_numbers(s.in_features * s.out_features, 2);
      const Floats bias = whole_numbers(s.out_features, 3), y_grad = whole_numbers(s.batch * s.out_features, 4);
      const auto run = [&](const KernelTable& kernels) {
        std::vector<Floats> results = {Floats(y_grad.size()), whole_numbers(x.size(), 5),
                                       whole_numbers(weight.size(), 6), whole_numbers(bias.size(), 7)};
        kernels.linear(in(x, x_shape(s)), in(weight, weight_shape(s)), flag ? in(bias, bias_shape(s)) : InputView(),
                       !flag, out(results[0], y_shape(s)), stream());
        kernels.linear_backward_data(in(y_grad, y_shape(s)), in(weight, weight_shape(s)),
                                     out(results[1], x_shape(s), flag), stream());
        kernels.linear_backward_weights(in(x, x_shape(s)), in(y_grad, y_shape(s)),
                                        out(results[2], weight_shape(s), flag), out(results[3], bias_shape(s), !flag),
                                        stream());
        return results;
      };
      const auto expected = run(plain()), actual = run(tested());
      for (std::size_t i = 0; i < expected.size(); ++i)
        expect_same_bits(actual[i], expected[i], fmt::format("{}, result {}", name, i));
    }
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// One shape for each algorithm: 1 x 1, images, many channels, Winograd's, and groups.
std::vector<Conv2dShape> shapes_with_relu() {
  return {conv2d_shape(2, 1, 1, 1, 1, 1, 1, 1, 1, {0, 0, 0, 0}),
          conv2d_shape(2, 7, 5, 16, 17, 1, 1, 1, 1, {0, 0, 0, 0}),
          conv2d_shape(2, 12, 12, 3, 64, 5, 5, 1, 1, {2, 2, 2, 2}),
          conv2d_shape(2, 8, 8, 16, 24, 3, 3, 2, 2, {1, 1, 1, 1}),
          conv2d_shape(2, 6, 6, 64, 64, 5, 5, 1, 1, {2, 2, 2, 2}),
          in_groups(2, conv2d_shape(2, 8, 8, 16, 24, 3, 3, 1, 1, {1, 1, 1, 1})),
          in_groups(17, conv2d_shape(2, 8, 8, 17, 17, 3, 3, 1, 1, {1, 1, 1, 1}))};
}

// NaN in one place must show in the loss, whichever place that is.
TEST(Conv2d, FusedReLULetsNanThrough) {
  for (const Conv2dShape& s : shapes_with_relu())
    for (const int broken : {0, 1, 2})
      for (const KernelTable* kernels : {&plain(), &tested()}) {
        Floats x = uniform(x_shape(s).count(), 1), weight = uniform(weight_shape(s).count(), 2),
               bias = uniform(s.out_channels, 3), y(y_shape(s).count(), 7);
        (broken == 0 ? x : broken == 1 ? weight : bias)[0] = broken == 1 ? -kNan : kNan;
        kernels->conv2d(s, in(x, x_shape(s)), in(weight, weight_shape(s)), in(bias, bias_shape(s)), true,
                        out(y, y_shape(s)), stream());
        EXPECT_TRUE(std::any_of(y.begin(), y.end(), [](float value) { return std::isnan(value); }))
            << name_of(s) << ", operand " << broken;
        if (broken > 0) continue;  // otherwise the second image is unaffected
        EXPECT_TRUE(std::none_of(y.begin() + static_cast<Index>(y.size()) / 2, y.end(),
                                 [](float value) { return std::isnan(value); }));
      }
}

TEST(Conv2d, FusedReLUOfInfinities) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const Conv2dShape s = conv2d_shape(1, 1, 1, 1, 16, 1, 1, 1, 1, {0, 0, 0, 0});
  for (const KernelTable* kernels : {&plain(), &tested()})
    for (const float x : {kInfinity, 3e38F}) {  // in an operand, or by overflow
      Floats weight(16, 2), y(16);
      weight[5] = -2;
      kernels->conv2d(s, {&x, x_shape(s)}, in(weight, weight_shape(s)), {}, true, out(y, y_shape(s)), stream());
      Floats expected(16, kInfinity);
      expected[5] = 0;
      EXPECT_EQ(y, expected) << x;
    }
}

TEST(Linear, FusedReLULetsNanThrough) {
  for (const LinearShape& s : {LinearShape{2, 5, 7}, LinearShape{64, 33, 5}})
    for (const KernelTable* kernels : {&plain(), &tested()}) {
      Floats x = uniform(s.batch * s.in_features, 1), y(s.batch * s.out_features);
      const Floats weight = uniform(s.in_features * s.out_features, 2);
      x[0] = kNan;
      kernels->linear(in(x, x_shape(s)), in(weight, weight_shape(s)), {}, true, out(y, y_shape(s)), stream());
      for (Index i = 0; i < s.batch * s.out_features; ++i)
        EXPECT_EQ(std::isnan(y[i]), i < s.out_features) << name_of(s) << ", " << i;
    }
}

// Random floats: a result depends neither on when nor on which thread it is computed.
TEST(Conv2d, RepeatsItsBitsInEveryThread) {
  const Conv2dShape s = conv2d_shape(3, 6, 6, 64, 64, 5, 5, 1, 1, {2, 2, 2, 2});
  const Floats x = uniform(x_shape(s).count(), 1), weight = uniform(weight_shape(s).count(), 2),
               y_grad = uniform(y_shape(s).count(), 3);
  const auto run = [&] {
    Floats results(y_shape(s).count() + x_shape(s).count() + weight_shape(s).count());
    float *y = results.data(), *x_grad = y + y_shape(s).count(), *weight_grad = x_grad + x_shape(s).count();
    tested().conv2d(s, in(x, x_shape(s)), in(weight, weight_shape(s)), {}, true, {y, y_shape(s)}, stream());
    tested().conv2d_backward_data(s, in(y_grad, y_shape(s)), in(weight, weight_shape(s)), {x_grad, x_shape(s)},
                                  stream());
    tested().conv2d_backward_weights(s, in(x, x_shape(s)), in(y_grad, y_shape(s)), {weight_grad, weight_shape(s)}, {},
                                     stream());
    return results;
  };
  const Floats first = run();
  std::vector<Floats> others(3);
  std::vector<std::thread> threads;
  threads.reserve(others.size());
  for (Floats& other : others) threads.emplace_back([&] { other = run(); });
  for (std::thread& thread : threads) thread.join();
  others.push_back(run());
  for (const Floats& other : others) expect_same_bits(other, first, "the same work again");
}

TEST(Conv2d, AsksTheSystemForNothingOnceWarm) {
  const Conv2dShape s = conv2d_shape(2, 8, 8, 16, 24, 3, 3, 1, 1, {1, 1, 1, 1});
  const Floats x = uniform(x_shape(s).count(), 1), weight = uniform(weight_shape(s).count(), 2),
               y_grad = uniform(y_shape(s).count(), 3);
  Floats y(y_shape(s).count()), x_grad(x_shape(s).count()), weight_grad(weight_shape(s).count()),
      bias_grad(s.out_channels);
  const auto step = [&] {
    tested().conv2d(s, in(x, x_shape(s)), in(weight, weight_shape(s)), {}, true, out(y, y_shape(s)), stream());
    tested().conv2d_backward_data(s, in(y_grad, y_shape(s)), in(weight, weight_shape(s)), out(x_grad, x_shape(s), true),
                                  stream());
    tested().conv2d_backward_weights(s, in(x, x_shape(s)), in(y_grad, y_shape(s)),
                                     out(weight_grad, weight_shape(s), true), out(bias_grad, bias_shape(s), true),
                                     stream());
  };
  step();
  const AllocatorStats warm = cpu_device().allocator_stats();
  for (int i = 0; i < 3; ++i) step();
  const AllocatorStats after = cpu_device().allocator_stats();
  EXPECT_EQ(after.system_allocations, warm.system_allocations);
  EXPECT_EQ(after.bytes_in_use, warm.bytes_in_use);
}

}  // namespace
}  // namespace lockstep::testing
