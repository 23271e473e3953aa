// Transposed and dilated convolutions: compared with sums by hand and with finite differences, and their errors.
#include "lockstep/autograd/conv_transpose.h"

#include <gmock/gmock.h>

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/convolution.h"
#include "lockstep/nn/conv_transpose.h"
#include "tests/autograd/gradient_check.h"
#include "tests/support/message_of.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

// Every pixel of x adds the weights, times itself, to the result.
Tensor scattered(const Tensor& x, const Tensor& weight, const ConvTranspose2dOptions& o, const Shape& result) {
  const Shape &in = x.shape(), &w = weight.shape();
  const std::int64_t of_group = w[3], seen = in[3] / o.groups;
  const Tensor y = Tensor::zeros(result);
  for (std::int64_t at = 0; at < x.count(); ++at) {
    const std::int64_t c = at % in[3], j = at / in[3] % in[2], i = at / in[3] / in[2] % in[1],
                       n = at / in[3] / in[2] / in[1];
    for (std::int64_t r = 0; r < w[1]; ++r)
      for (std::int64_t s = 0; s < w[2]; ++s) {
        const std::int64_t row = i * o.stride[0] + r * o.dilation[0] - o.padding.top,
                           column = j * o.stride[1] + s * o.dilation[1] - o.padding.left;
        if (row < 0 || row >= result[1] || column < 0 || column >= result[2]) continue;
        for (std::int64_t k = 0; k < of_group; ++k)
          y.data<float>()[((n * result[1] + row) * result[2] + column) * result[3] + c / seen * of_group + k] +=
              x.data<float>()[at] * weight.data<float>()[((c * w[1] + r) * w[2] + s) * of_group + k];
      }
  }
  return y;
}

struct Form {
  Shape x, weight, result;
  ConvTranspose2dOptions options;
};

const std::vector<Form>& forms() {
  static const std::vector<Form> kForms = {
      {{2, 3, 4, 5}, {5, 3, 2, 4}, {2, 5, 5, 4}, {}},
      {{2, 3, 4, 4}, {4, 3, 3, 3}, {2, 6, 9, 3}, {.stride = {2, 3}, .padding = {1, 2}, .output_padding = {1, 1}}},
      {{1, 2, 3, 6}, {6, 2, 3, 2}, {1, 5, 9, 4}, {.stride = 3, .padding = {0, 0}, .groups = 2}},
      {{2, 4, 3, 2}, {2, 3, 3, 2}, {2, 5, 7, 2}, {.padding = {3, 0, 0, 0}, .dilation = 2}},
      {{2, 1, 1, 3}, {3, 4, 4, 2}, {2, 4, 4, 2}, {}}};
  return kForms;
}

TEST(ConvTranspose2d, ScattersEachPixel) {
  manual_seed(1);
  const NoGrad no_grad;
  for (const Form& form : forms()) {
    SCOPED_TRACE(form.result.text());
    const Tensor x = random_leaf(form.x), weight = random_leaf(form.weight);
    const Tensor y = conv_transpose2d(x, weight, {}, form.options);
    ASSERT_EQ(y.shape(), form.result);
    const Tensor expected = scattered(x, weight, form.options, form.result);
    for (std::int64_t i = 0; i < y.count(); ++i) ASSERT_NEAR(y.data<float>()[i], expected.data<float>()[i], 1e-5F);
  }
}

TEST(ConvTranspose2d, AgreesWithFiniteDifferences) {
  manual_seed(2);
  for (const Form& form : forms()) {
    SCOPED_TRACE(form.result.text());
    const Tensor x = random_leaf(form.x), weight = random_leaf(form.weight), bias = random_leaf({form.result[3]});
    check_gradients(
        {x, weight, bias}, [&] { return weigh(conv_transpose2d(x, weight, bias, form.options)); }, 0.1F);
    // A second use adds to the gradients.
    check_gradients(
        {x, weight},
        [&] {
          const Tensor y = conv_transpose2d(x, weight, {}, form.options);
          return weigh(y) + weigh(conv_transpose2d(x, weight, {}, form.options));
        },
        0.1F);
  }
}

TEST(ConvTranspose1d, IsConvTranspose2dOfHeightOne) {
  manual_seed(3);
  const Tensor x = random_leaf({2, 5, 4}), weight = random_leaf({4, 3, 2}), bias = random_leaf({4});
  const ConvTranspose1dOptions options{.stride = 2, .padding = {1, 0}, .output_padding = 1, .groups = 2, .dilation = 2};
  const Tensor y = conv_transpose1d(x, weight, bias, options);
  const Tensor wide = conv_transpose2d(
      reshape(x, {2, 1, 5, 4}), reshape(weight, {4, 1, 3, 2}), bias,
      {.stride = {1, 2}, .padding = {0, 1, 0, 0}, .output_padding = {0, 1}, .groups = 2, .dilation = {1, 2}});
  ASSERT_EQ(y.shape(), (Shape{2, 13, 4}));
  for (std::int64_t i = 0; i < y.count(); ++i) EXPECT_EQ(y.data<float>()[i], wide.data<float>()[i]);
  check_gradients(
      {x, weight, bias}, [&] { return weigh(conv_transpose1d(x, weight, bias, options)); }, 0.1F);
}

TEST(DilatedConv2d, IsAConvolutionWithZerosBetweenTheTaps) {
  manual_seed(4);
  const Tensor x = random_leaf({2, 9, 8, 4}), weight = random_leaf({6, 3, 2, 2});
  const Tensor spread = Tensor::zeros({6, 5, 4, 2});
  for (std::int64_t at = 0; at < weight.count(); ++at) {
    const std::int64_t c = at % 2, s = at / 2 % 2, r = at / 4 % 3, o = at / 12;
    spread.data<float>()[((o * 5 + 2 * r) * 4 + 3 * s) * 2 + c] = weight.data<float>()[at];
  }
  Conv2dOptions options{.stride = {2, 1}, .padding = Padding{1, 2}, .groups = 2};
  const Tensor expected = conv2d(x, spread, {}, options);
  options.dilation = {2, 3};
  const Tensor y = conv2d(x, weight, {}, options);
  ASSERT_EQ(y.shape(), expected.shape());
  for (std::int64_t i = 0; i < y.count(); ++i) EXPECT_NEAR(y.data<float>()[i], expected.data<float>()[i], 1e-5F);
}

TEST(DilatedConv2d, AgreesWithFiniteDifferences) {
  manual_seed(5);
  const Tensor x = random_leaf({2, 7, 6, 4}), weight = random_leaf({4, 3, 3, 4}), bias = random_leaf({4});
  check_gradients(
      {x, weight, bias}, [&] { return weigh(conv2d(x, weight, bias, {.padding = Padding{2}, .dilation = 2})); }, 0.1F);
  check_gradients(
      {x, weight},
      [&] {
        return weigh(conv2d(x, weight, {}, {.stride = 2, .padding = Same{}, .dilation = {1, 2}}));
      },
      0.1F);
  const Tensor line = random_leaf({2, 11, 3}), taps = random_leaf({4, 3, 3});
  check_gradients(
      {line, taps}, [&] { return weigh(conv1d(line, taps, {}, {.padding = Padding1d{2}, .dilation = 3})); }, 0.1F);
}

TEST(ConvTranspose2d, ComputesIn16BitsUnderAutoCast) {
  manual_seed(6);
  const Tensor x = random_leaf({2, 4, 4, 8}), weight = random_leaf({8, 3, 3, 4}), bias = random_leaf({4});
  const Tensor wide = conv_transpose2d(x, weight, bias, {.stride = 2});
  const AutoCast half(DType::kBFloat16);
  const Tensor y = conv_transpose2d(x, weight, bias, {.stride = 2});
  EXPECT_EQ(y.dtype(), DType::kBFloat16);
  const Tensor floats = cast(y, DType::kFloat32);
  for (std::int64_t i = 0; i < y.count(); ++i) EXPECT_NEAR(floats.data<float>()[i], wide.data<float>()[i], 0.1F);
  sum(floats).backward();
  EXPECT_EQ(grad(weight).dtype(), DType::kFloat32);
}

TEST(ConvTranspose2d, SaysWhatItRefuses) {
  const Tensor x = Tensor::zeros({1, 2, 3, 4}), weight = Tensor::zeros({4, 3, 3, 2});
  const auto message = [&](const Tensor& w, const Tensor& bias, const ConvTranspose2dOptions& options) {
    return message_of([&] { conv_transpose2d(x, w, bias, options); });
  };
  EXPECT_THAT(message(Tensor::zeros({5, 3, 3, 2}), {}, {}),
              HasSubstr("conv_transpose2d: weight (5, 3, 3, 2) expects 5 channels, but x (1, 2, 3, 4) has 4"));
  EXPECT_THAT(message(weight, {}, {.groups = 3}), HasSubstr("conv_transpose2d: 3 groups must divide the 4 channels"));
  EXPECT_THAT(message(weight, Tensor::zeros({3}), {}), HasSubstr("bias (3) does not match weight (4, 3, 3, 2)"));
  EXPECT_THAT(message(weight, {}, {.stride = 0}), HasSubstr("must be positive"));
  EXPECT_THAT(message(weight, {}, {.stride = 2, .output_padding = 2}),
              HasSubstr("conv_transpose2d: output_padding 2 x 2 must be at least 0 and smaller than the stride 2 x 2"));
  EXPECT_THAT(message(weight, {}, {.padding = -1}),
              HasSubstr("conv_transpose2d: padding top -1, left -1, bottom -1, right -1 must not be negative"));
  EXPECT_THAT(message(weight, {}, {.padding = 3}), HasSubstr("give -2 x -1 pixels, expected at least 1"));
  EXPECT_THAT(message_of([&] {
                conv2d(x, Tensor::zeros({2, 1, 1, 4}), {}, {.padding = Padding{0, -2, 0, 1}});
              }),
              HasSubstr("conv2d: padding top 0, left -2, bottom 0, right 1 must not be negative"));
  EXPECT_THAT(message_of([&] {
                conv2d(x, Tensor::zeros({2, 1, 1, 4}), {}, {.dilation = {1, 0}});
              }),
              HasSubstr("conv2d: the dilation must be positive, got 1 x 0"));
  EXPECT_THAT(message_of([&] {
                conv2d(x, Tensor::zeros({2, 2, 2, 4}), {}, {.dilation = 4});
              }),
              HasSubstr("conv2d: the window 5 x 5 does not fit the padded image 2 x 3"));
  EXPECT_THAT(message_of([] { nn::ConvTranspose2d(4, 6, 3, {.groups = 4}); }),
              HasSubstr("ConvTranspose2d: 4 groups must divide 4 input and 6 output channels"));
}

}  // namespace
}  // namespace lockstep
