// Winograd's convolutions against the plain ones: random data, so up to rounding.
#include <fmt/format.h>

#include <limits>

#include "kernels/cpu/winograd.h"
#include "tests/kernels/cases/shapes.h"
#include "tests/kernels/cpu/exact.h"

namespace lockstep::testing {
namespace {

Conv2dShape shape_of(Index batch, Index height, Index width, Index in, Index out, std::array<Index, 4> pads) {
  return {batch,   height,  width,   in,     height + pads[0] + pads[2] - 4, width + pads[1] + pads[3] - 4, out, 5, 5, 1, 1,
          pads[0], pads[1], pads[2], pads[3]};
}

// Of the largest value; direct convolution in float stays within some 1e-6.
constexpr float kTolerance = 3e-5F;

TEST(Winograd, IsCloseToThePlainKernels) {
  for (const Conv2dShape& s : {shape_of(3, 12, 12, 64, 64, {2, 2, 2, 2}), shape_of(1, 5, 5, 64, 64, {0, 0, 0, 0}),
                               shape_of(2, 7, 6, 64, 128, {1, 4, 3, 0}), shape_of(1, 6, 9, 128, 64, {0, 2, 2, 1})}) {
    if (!winograd::suits(s)) GTEST_SKIP() << "needs a CPU with AVX-512 (LOCKSTEP_ISA not lowered)";
    const Index x_count = s.batch * s.in_height * s.in_width * s.in_channels;
    const Index y_count = s.batch * s.out_height * s.out_width * s.out_channels, weights = s.out_channels * 25 * s.in_channels;
    const Floats x = uniform(x_count, 1), weight = uniform(weights, 2), bias = uniform(s.out_channels, 3), y_grad = uniform(y_count, 4);
    for (const bool flag : {false, true}) {
      const std::string name =
          fmt::format("({}, {}, {}, {}) to {}, {}", s.batch, s.in_height, s.in_width, s.in_channels, s.out_channels, flag);
      Floats expected(y_count), actual(y_count);
      plain().conv2d(s, in(x, x_shape(s)), in(weight, weight_shape(s)), flag ? in(bias, bias_shape(s)) : InputView(), flag,
                     out(expected, y_shape(s)), stream());
      winograd::conv2d(s, x.data(), weight.data(), flag ? bias.data() : nullptr, flag, actual.data());
      expect_close(actual, expected, kTolerance, name);
      expected = actual = uniform(x_count, 5);
      plain().conv2d_backward_data(s, in(y_grad, y_shape(s)), in(weight, weight_shape(s)), out(expected, x_shape(s), flag), stream());
      winograd::conv2d_backward_data(s, y_grad.data(), weight.data(), actual.data(), flag);
      expect_close(actual, expected, kTolerance, name + ", data");
      expected = actual = uniform(weights, 6);
      plain().conv2d_backward_weights(s, in(x, x_shape(s)), in(y_grad, y_shape(s)), out(expected, weight_shape(s), flag), {}, stream());
      winograd::conv2d_backward_weights(s, x.data(), y_grad.data(), actual.data(), flag);
      expect_close(actual, expected, kTolerance, name + ", weights");
    }
  }
}

// Whichever way the device chooses for such a layer, the results are close, and the bias's gradient exact.
TEST(Winograd, LayersOfTheDeviceAreCloseToThePlainKernels) {
  const Conv2dShape s = shape_of(2, 12, 12, 64, 64, {2, 2, 2, 2});
  const Index pixels = s.batch * 144 * 64, weights = 64 * 25 * 64;
  const Floats x = uniform(pixels, 1), weight = uniform(weights, 2), bias = uniform(64, 3), y_grad = whole_numbers(pixels, 4);
  for (const bool accumulate : {false, true}) {
    const auto run = [&](const KernelTable& kernels) {
      std::vector<Floats> results = {Floats(pixels), uniform(pixels, 5), uniform(weights, 6), whole_numbers(64, 7)};
      kernels.conv2d(s, in(x, x_shape(s)), in(weight, weight_shape(s)), in(bias, bias_shape(s)), true, out(results[0], y_shape(s)),
                     stream());
      kernels.conv2d_backward_data(s, in(y_grad, y_shape(s)), in(weight, weight_shape(s)), out(results[1], x_shape(s), accumulate),
                                   stream());
      kernels.conv2d_backward_weights(s, in(x, x_shape(s)), in(y_grad, y_shape(s)), out(results[2], weight_shape(s), accumulate),
                                      out(results[3], bias_shape(s), !accumulate), stream());
      return results;
    };
    const auto expected = run(plain()), actual = run(tested());
    for (std::size_t i = 0; i < 3; ++i) expect_close(actual[i], expected[i], kTolerance, fmt::format("result {}", i));
    expect_same_bits(actual[3], expected[3], "bias gradient");
  }
}

TEST(Winograd, LetsNanThroughRelu) {
  const Conv2dShape s = shape_of(1, 6, 6, 64, 64, {2, 2, 2, 2});
  if (!winograd::suits(s)) GTEST_SKIP() << "needs a CPU with AVX-512 (LOCKSTEP_ISA not lowered)";
  Floats x = uniform(36 * 64, 1), y(36 * 64);
  const Floats weight = uniform(64 * 25 * 64, 2);
  x[5] = std::numeric_limits<float>::quiet_NaN();
  winograd::conv2d(s, x.data(), weight.data(), nullptr, true, y.data());
  EXPECT_TRUE(std::isnan(y[0]));
}

TEST(Winograd, LeavesOtherShapesAlone) {
  const Conv2dShape good = shape_of(1, 6, 6, 64, 64, {2, 2, 2, 2});
  for (auto change :
       {+[](Conv2dShape& s) { s.stride_width = 2; }, +[](Conv2dShape& s) { s.kernel_height = 3; },
        +[](Conv2dShape& s) { s.in_channels = 3; }, +[](Conv2dShape& s) { s.pad_left = 5; }, +[](Conv2dShape& s) { s.batch = 0; }}) {
    Conv2dShape shape = good;
    change(shape);
    EXPECT_FALSE(winograd::suits(shape));
  }
}

}  // namespace
}  // namespace lockstep::testing
