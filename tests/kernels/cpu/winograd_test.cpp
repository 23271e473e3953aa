// Compares Winograd's convolutions with the plain ones on random data, up to rounding.
#include <fmt/format.h>

#include <limits>

#include "kernels/cases/shapes.h"
#include "kernels/cpu/conv/winograd/winograd.h"
#include "kernels/cpu/conv/winograd/winograd_narrow.h"
#include "lockstep/core/cpu_dispatch.h"
#include "tests/kernels/cpu/exact.h"

namespace lockstep::testing {
namespace {

Conv2dShape shape_of(Index kernel, Index batch, Index height, Index width, Index in, Index out,
                     std::array<Index, 4> pads) {
  return conv2d_shape(batch, height, width, in, out, kernel, kernel, 1, 1, pads);
}

const std::vector<Conv2dShape>& shapes() {
  static const std::vector<Conv2dShape> kShapes = {
      shape_of(5, 3, 12, 12, 64, 64, {2, 2, 2, 2}), shape_of(5, 1, 8, 7, 64, 16, {0, 0, 0, 0}),
      shape_of(5, 2, 7, 6, 16, 128, {1, 4, 3, 0}),  shape_of(5, 1, 6, 9, 112, 32, {0, 2, 2, 1}),
      shape_of(5, 30, 5, 4, 48, 80, {3, 2, 1, 2}),  shape_of(3, 3, 12, 12, 64, 64, {1, 1, 1, 1}),
      shape_of(3, 1, 6, 6, 16, 16, {0, 0, 0, 0}),   shape_of(3, 2, 3, 8, 32, 96, {1, 0, 2, 1}),
      shape_of(3, 13, 11, 9, 48, 16, {2, 2, 1, 0}), shape_of(3, 60, 8, 8, 16, 32, {1, 1, 1, 1}),
      shape_of(3, 1, 4, 3, 80, 112, {1, 2, 1, 2}),  shape_of(3, 128, 4, 4, 96, 96, {1, 1, 1, 1})};
  return kShapes;
}

// Relative to the largest value; direct convolution in float stays within about 1e-6.
constexpr float kTolerance = 3e-5F;

TEST(Winograd, IsCloseToThePlainKernels) {
  for (const Conv2dShape& s : shapes()) {
    ASSERT_TRUE(winograd::suits(s)) << name_of(s);
    const Index x_count = x_shape(s).count(), y_count = y_shape(s).count(), weights = weight_shape(s).count();
    const Floats x = uniform(x_count, 1), weight = uniform(weights, 2), bias = uniform(s.out_channels, 3),
                 y_grad = uniform(y_count, 4);
    for (const bool flag : {false, true}) {
      const std::string name = fmt::format("{}, {}", name_of(s), flag);
      Floats expected(y_count), actual(y_count);
      plain().conv2d(s, in(x, x_shape(s)), in(weight, weight_shape(s)), flag ? in(bias, bias_shape(s)) : InputView(),
                     flag, out(expected, y_shape(s)), stream());
      winograd::conv2d(s, x.data(), weight.data(), flag ? bias.data() : nullptr, flag, actual.data());
      expect_close(actual, expected, kTolerance, name);
      expected = actual = uniform(x_count, 5);
      plain().conv2d_backward_data(s, in(y_grad, y_shape(s)), in(weight, weight_shape(s)),
                                   out(expected, x_shape(s), flag), stream());
      winograd::conv2d_backward_data(s, y_grad.data(), weight.data(), actual.data(), flag);
      expect_close(actual, expected, kTolerance, name + ", data");
      expected = actual = uniform(weights, 6);
      plain().conv2d_backward_weights(s, in(x, x_shape(s)), in(y_grad, y_shape(s)),
                                      out(expected, weight_shape(s), flag), {}, stream());
      winograd::conv2d_backward_weights(s, x.data(), y_grad.data(), actual.data(), flag);
      expect_close(actual, expected, kTolerance, name + ", weights");
    }
  }
}

TEST(WinogradOfFewChannels, IsCloseToThePlainKernels) {
  for (const Conv2dShape& s : {shape_of(5, 3, 12, 12, 3, 64, {2, 2, 2, 2}), shape_of(5, 1, 8, 7, 1, 16, {0, 0, 0, 0}),
                               shape_of(5, 2, 7, 6, 4, 48, {1, 4, 3, 0}), shape_of(5, 90, 9, 9, 2, 32, {2, 0, 1, 2}),
                               shape_of(5, 1, 3, 4, 3, 16, {2, 2, 2, 2})}) {
    ASSERT_TRUE(winograd_narrow::suits(s)) << name_of(s);
    const Index y_count = y_shape(s).count(), weights = weight_shape(s).count();
    const Floats x = uniform(x_shape(s).count(), 1), weight = uniform(weights, 2), bias = uniform(s.out_channels, 3),
                 y_grad = whole_numbers(y_count, 4);
    for (const bool flag : {false, true}) {
      const std::string name = fmt::format("{}, {}", name_of(s), flag);
      Floats expected(y_count), actual(y_count);
      plain().conv2d(s, in(x, x_shape(s)), in(weight, weight_shape(s)), flag ? in(bias, bias_shape(s)) : InputView(),
                     flag, out(expected, y_shape(s)), stream());
      winograd_narrow::conv2d(s, x.data(), weight.data(), flag ? bias.data() : nullptr, flag, actual.data());
      expect_close(actual, expected, kTolerance, name);
      expected = actual = uniform(weights, 6);
      Floats expected_bias = whole_numbers(s.out_channels, 7), actual_bias = expected_bias;
      plain().conv2d_backward_weights(s, in(x, x_shape(s)), in(y_grad, y_shape(s)),
                                      out(expected, weight_shape(s), flag),
                                      flag ? OutputView() : out(expected_bias, bias_shape(s), true), stream());
      winograd_narrow::conv2d_backward_weights(s, x.data(), y_grad.data(), out(actual, weight_shape(s), flag),
                                               flag ? OutputView() : out(actual_bias, bias_shape(s), true));
      expect_close(actual, expected, kTolerance, name + ", weights");
      expect_same_bits(actual_bias, expected_bias, name + ", biases");
    }
  }
}

TEST(WinogradOfFewChannels, LeavesOtherShapesAlone) {
  const Conv2dShape good = shape_of(5, 1, 8, 8, 3, 16, {2, 2, 2, 2});
  EXPECT_TRUE(winograd_narrow::suits(good));
  for (auto change :
       {+[](Conv2dShape& s) { s.stride_width = 2; }, +[](Conv2dShape& s) { s.kernel_height = s.kernel_width = 3; },
        +[](Conv2dShape& s) { s.in_channels = 5; }, +[](Conv2dShape& s) { s.out_channels = 18; },
        +[](Conv2dShape& s) { s.pad_bottom = 5; }, +[](Conv2dShape& s) { s.batch = 0; },
        +[](Conv2dShape& s) { s.groups = 3; }, +[](Conv2dShape& s) { s.out_height = s.out_width = 2; }}) {
    Conv2dShape shape = good;
    change(shape);
    EXPECT_FALSE(winograd_narrow::suits(shape)) << name_of(shape);
  }
}

// Whichever algorithm the device chooses for such a layer, the results are close, and the bias's gradient is exact.
TEST(Winograd, LayersOfTheDeviceAreCloseToThePlainKernels) {
  const Conv2dShape s = shape_of(5, 2, 12, 12, 64, 64, {2, 2, 2, 2});
  const Index pixels = s.batch * 144 * 64, weights = 64 * 25 * 64;
  const Floats x = uniform(pixels, 1), weight = uniform(weights, 2), bias = uniform(64, 3),
               y_grad = whole_numbers(pixels, 4);
  for (const bool accumulate : {false, true}) {
    const auto run = [&](const KernelTable& kernels) {
      std::vector<Floats> results = {Floats(pixels), uniform(pixels, 5), uniform(weights, 6), whole_numbers(64, 7)};
      kernels.conv2d(s, in(x, x_shape(s)), in(weight, weight_shape(s)), in(bias, bias_shape(s)), true,
                     out(results[0], y_shape(s)), stream());
      kernels.conv2d_backward_data(s, in(y_grad, y_shape(s)), in(weight, weight_shape(s)),
                                   out(results[1], x_shape(s), accumulate), stream());
      kernels.conv2d_backward_weights(s, in(x, x_shape(s)), in(y_grad, y_shape(s)),
                                      out(results[2], weight_shape(s), accumulate),
                                      out(results[3], bias_shape(s), !accumulate), stream());
      return results;
    };
    const auto expected = run(plain()), actual = run(tested());
    for (std::size_t i = 0; i < 3; ++i) expect_close(actual[i], expected[i], kTolerance, fmt::format("result {}", i));
    expect_same_bits(actual[3], expected[3], "bias gradient");
  }
}

TEST(Winograd, LetsNanThroughRelu) {
  for (const Index kernel : {3, 5}) {
    const Index pad = kernel / 2;
    const Conv2dShape s = shape_of(kernel, 1, 8, 8, 64, 64, {pad, pad, pad, pad});
    Floats x = uniform(64 * 64, 1), y(64 * 64);
    const Floats weight = uniform(64 * kernel * kernel * 64, 2);
    x[5] = std::numeric_limits<float>::quiet_NaN();
    winograd::conv2d(s, x.data(), weight.data(), nullptr, true, y.data());
    EXPECT_TRUE(std::isnan(y[0])) << kernel;
  }
}

TEST(Winograd, LeavesOtherShapesAlone) {
  const Conv2dShape good = shape_of(5, 1, 6, 6, 64, 64, {2, 2, 2, 2});
  EXPECT_TRUE(winograd::suits(good));
  for (auto change :
       {+[](Conv2dShape& s) { s.stride_width = 2; }, +[](Conv2dShape& s) { s.kernel_height = 3; },
        +[](Conv2dShape& s) { s.kernel_height = s.kernel_width = 4; }, +[](Conv2dShape& s) { s.in_channels = 3; },
        +[](Conv2dShape& s) { s.out_channels = 66; }, +[](Conv2dShape& s) { s.out_channels = 128; },
        +[](Conv2dShape& s) { s.batch = 100, s.out_channels = 1024; }, +[](Conv2dShape& s) { s.pad_left = 5; },
        +[](Conv2dShape& s) { s.batch = 0; }, +[](Conv2dShape& s) { s.groups = 2; },
        +[](Conv2dShape& s) { s.in_height = s.out_height = 1; }}) {
    Conv2dShape shape = good;
    change(shape);
    EXPECT_FALSE(winograd::suits(shape)) << name_of(shape);
  }
}

}  // namespace
}  // namespace lockstep::testing
