// Convolutions of volumes: compared with sums by hand and with finite differences, and their errors.
#include "lockstep/autograd/conv3d.h"

#include <gmock/gmock.h>

#include "lockstep/autograd/autocast.h"
#include "lockstep/nn/conv3d.h"
#include "tests/autograd/gradient_check.h"
#include "tests/support/message_of.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

struct VolumeForm {
  Shape x, weight, result;
  Conv3dOptions options;
};

const std::vector<VolumeForm>& volume_forms() {
  static const std::vector<VolumeForm> kForms = {
      {{2, 3, 4, 5, 3}, {4, 2, 3, 2, 3}, {2, 2, 2, 4, 4}, {}},
      {{1, 5, 4, 6, 2},
       {3, 3, 2, 3, 2},
       {1, 3, 5, 2, 3},
       {.stride = {2, 1, 3}, .padding = {1, 2, 1}, .dilation = {1, 3, 2}}},
      {{2, 6, 3, 3, 4}, {6, 2, 3, 3, 2}, {2, 3, 3, 3, 6}, {.padding = {0, 1, 1}, .groups = 2, .dilation = {3, 1, 1}}},
      {{1, 1, 3, 4, 2}, {2, 1, 1, 1, 2}, {1, 1, 3, 4, 2}, {}}};
  return kForms;
}

float by_hand(const Tensor& x, const Tensor& weight, const Conv3dOptions& o, const Shape& result, std::int64_t at) {
  const Shape &in = x.shape(), &w = weight.shape();
  const std::int64_t filter = at % result[4], column = at / result[4] % result[3],
                     row = at / result[4] / result[3] % result[2],
                     plane = at / result[4] / result[3] / result[2] % result[1],
                     sample = at / result[4] / result[3] / result[2] / result[1];
  const std::int64_t first = filter / (w[0] / o.groups) * w[4];
  double sum = 0;
  for (std::int64_t a = 0; a < w[1]; ++a)
    for (std::int64_t b = 0; b < w[2]; ++b)
      for (std::int64_t c = 0; c < w[3]; ++c) {
        const std::int64_t d = plane * o.stride.depth + a * o.dilation.depth - o.padding.depth,
                           h = row * o.stride.height + b * o.dilation.height - o.padding.height,
                           v = column * o.stride.width + c * o.dilation.width - o.padding.width;
        if (d < 0 || d >= in[1] || h < 0 || h >= in[2] || v < 0 || v >= in[3]) continue;
        for (std::int64_t k = 0; k < w[4]; ++k)
          sum += double{x.data<float>()[(((sample * in[1] + d) * in[2] + h) * in[3] + v) * in[4] + first + k]} *
                 weight.data<float>()[(((filter * w[1] + a) * w[2] + b) * w[3] + c) * w[4] + k];
      }
  return static_cast<float>(sum);
}

TEST(Conv3d, IsTheSumOverEachFiltersVolume) {
  manual_seed(1);
  const NoGrad no_grad;
  for (const VolumeForm& form : volume_forms()) {
    SCOPED_TRACE(form.result.text());
    const Tensor x = random_leaf(form.x), weight = random_leaf(form.weight);
    const Tensor y = conv3d(x, weight, {}, form.options);
    ASSERT_EQ(y.shape(), form.result);
    for (std::int64_t i = 0; i < y.count(); ++i)
      ASSERT_NEAR(y.data<float>()[i], by_hand(x, weight, form.options, form.result, i), 1e-5F) << i;
  }
}

TEST(Conv3d, AgreesWithFiniteDifferences) {
  manual_seed(2);
  for (const VolumeForm& form : volume_forms()) {
    SCOPED_TRACE(form.result.text());
    const Tensor x = random_leaf(form.x), weight = random_leaf(form.weight), bias = random_leaf({form.result[4]});
    check_gradients(
        {x, weight, bias}, [&] { return weigh(conv3d(x, weight, bias, form.options)); }, 0.1F);
  }
}

TEST(Conv3d, AppliesItsActivation) {
  const Tensor x = Tensor::full({1, 1, 1, 1, 1}, -2), weight = Tensor::full({1, 1, 1, 1, 1}, 1);
  EXPECT_EQ(conv3d(x, weight, {}, {.activation = Activation::kReLU}).item(), 0);
}

TEST(Conv3d, NamesWhatDoesNotFit) {
  const Tensor x = Tensor::zeros({1, 3, 4, 4, 2}), weight = Tensor::zeros({4, 2, 2, 2, 2});
  const auto message = [&](const Tensor& input, const Tensor& filters, const Tensor& bias,
                           const Conv3dOptions& options) {
    return message_of([&] { conv3d(input, filters, bias, options); });
  };
  EXPECT_THAT(message(Tensor::zeros({3, 4, 4, 2}), weight, {}, {}), HasSubstr("conv3d: x (N, D, H, W, C)"));
  EXPECT_THAT(message(x, Tensor::zeros({4, 2, 2, 2}), {}, {}), HasSubstr("conv3d: weight (O, KD, KH, KW, C)"));
  EXPECT_THAT(message(x, Tensor::zeros({4, 2, 2, 2, 3}), {}, {}), HasSubstr("does not match the 2 channels"));
  EXPECT_THAT(message(x, weight, {}, {.groups = 2}), HasSubstr("in 2 groups"));
  EXPECT_THAT(message(x, weight, {}, {.groups = 0}), HasSubstr("in 0 groups"));
  EXPECT_THAT(message(x, weight, Tensor::zeros({3}), {}), HasSubstr("conv3d: bias"));
  EXPECT_THAT(message(x, weight, {}, {.dilation = {0, 1, 1}}), HasSubstr("the dilation must be positive"));
  for (const Conv3dOptions& options : {Conv3dOptions{.stride = {0, 1, 1}}, Conv3dOptions{.padding = {-1, 0, 0}},
                                       Conv3dOptions{.dilation = {3, 1, 1}}, Conv3dOptions{.dilation = {1, 1, 4}}})
    EXPECT_THAT(message(x, weight, {}, options), HasSubstr("conv3d: "));
  EXPECT_THAT(message_of([] { nn::Conv3d(3, 4, 0); }), HasSubstr("Conv3d: every size must be positive"));
}

TEST(Conv3d, PrintsItsOptions) {
  EXPECT_EQ(nn::Conv3d(2, 4, {3, 2, 1}, {.padding = {1, 0, 0}, .bias = false, .groups = 2}).extra_repr(),
            "2, 4, kernel=(3, 2, 1), stride=(1, 1, 1), padding=(1, 0, 0), groups=2, bias=false");
}

}  // namespace
}  // namespace lockstep
