// Keras' ways to write a model: activations by name, softmax at the end with the loss of probabilities, Keras' initial
// weights.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "lockstep/lockstep.h"
#include "tests/support/message_of.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Tensor random_rows(const Shape& shape) {
  const Tensor x = Tensor::empty(shape);
  fill_uniform(x, -2, 2);
  return x;
}

// Each activation of a layer is that function of the layer without it, in values and gradients.
TEST(KerasSpelling, EveryActivationGoesIntoEveryLayerByItsKerasName) {
  for (const char* name :
       {"linear", "relu", "sigmoid", "tanh", "softmax", "log_softmax", "gelu", "silu", "swish", "leaky_relu",
        "exponential", "elu", "softplus", "hard_swish", "hard_silu", "relu6", "mish"}) {
    SCOPED_TRACE(name);
    const Activation activation = activation_named(name);
    const auto check = [&](nn::Module& plain, nn::Module& active, const Tensor& x) {
      active.load_state_dict(plain.state_dict());
      const Tensor expected = activate(plain(x), activation), y = active(x);
      const Tensor factors = random_rows(y.shape());
      for (std::int64_t i = 0; i < y.count(); ++i)
        ASSERT_FLOAT_EQ(y.span<float>()[static_cast<std::size_t>(i)],
                        expected.span<float>()[static_cast<std::size_t>(i)]);
      sum(expected * factors).backward();
      sum(y * factors).backward();
      for (std::size_t p = 0; p < plain.parameters().size(); ++p) {
        const Tensor a = grad(plain.parameters()[p]), b = grad(active.parameters()[p]);
        for (std::size_t i = 0; i < a.span<float>().size(); ++i)
          EXPECT_NEAR(a.span<float>()[i], b.span<float>()[i], 1e-4F + 1e-4F * std::abs(a.span<float>()[i]));
      }
    };
    manual_seed(3);
    nn::Linear linear(3, 4), active_linear(3, 4, {.activation = activation});
    check(linear, active_linear, random_rows({5, 3}));
    nn::Conv2d conv(2, 3, 2), active_conv(2, 3, 2, {.activation = activation});
    check(conv, active_conv, random_rows({2, 4, 4, 2}));
    nn::Conv1d conv1(2, 3, 2), active_conv1(2, 3, 2, {.activation = activation});
    check(conv1, active_conv1, random_rows({2, 4, 2}));
    nn::BatchNorm norm(3), active_norm(3, {.activation = activation});
    check(norm, active_norm, random_rows({6, 3}));
  }
  EXPECT_THAT(message_of([] { activation_named("celu"); }),
              AllOf(HasSubstr("there is no activation 'celu', expected one of linear, relu"), HasSubstr("forward()")));
  std::ostringstream text;
  text << nn::Linear(2, 46, {.activation = Activation::kSoftmax});
  EXPECT_EQ(text.str(), "Linear(2, 46, activation=softmax)");
}

// Keras: tf.keras.losses.SparseCategoricalCrossentropy()([1, 0], [[0.05, 0.95, 0], [0.1, 0.8, 0.1]]) is 1.1769392, the
// example of its documentation with labels [1, 2].
TEST(KerasSpelling, TheLossOfProbabilitiesIsKerasExample) {
  const Tensor p = Tensor::from<float>(std::array{0.05F, 0.95F, 0.0F, 0.1F, 0.8F, 0.1F}, {2, 3});
  const Tensor labels = Tensor::from<std::int64_t>(std::array<std::int64_t, 2>{1, 2}, {2});
  EXPECT_NEAR(nn::cross_entropy(p, labels, {.from_logits = false}).item(), 1.1769392F, 1e-6);
  // CategoricalCrossentropy()([[0, 1, 0], [0, 0, 1]], ...) of the same page; reduction SUM: 2.3538785.
  const Tensor one_hot = Tensor::from<float>(std::array{0.0F, 1.0F, 0.0F, 0.0F, 0.0F, 1.0F}, {2, 3});
  EXPECT_NEAR(nn::cross_entropy(p, one_hot, {.from_logits = false}).item(), 1.1769392F, 1e-6);
  EXPECT_NEAR(nn::cross_entropy(p, one_hot, {.reduction = Reduction::kSum, .from_logits = false}).item(), 2.3538785F,
              1e-6);
  const Tensor each = nn::cross_entropy(p, one_hot, {.reduction = Reduction::kNone, .from_logits = false});
  EXPECT_NEAR(each.span<float>()[0], 0.0512933F, 1e-6);
  EXPECT_NEAR(each.span<float>()[1], 2.3025851F, 1e-6);
  // keras.losses.binary_crossentropy of the same page: [0.916, 0.714].
  const Tensor b = Tensor::from<float>(std::array{0.6F, 0.4F, 0.4F, 0.6F}, {2, 2});
  const Tensor wanted = Tensor::from<float>(std::array{0.0F, 1.0F, 0.0F, 0.0F}, {2, 2});
  const Tensor rows = mean(nn::binary_cross_entropy(b, wanted, {.reduction = Reduction::kNone}), -1);
  EXPECT_NEAR(rows.span<float>()[0], 0.916291F, 1e-6);
  EXPECT_NEAR(rows.span<float>()[1], 0.713558F, 1e-6);
  EXPECT_NEAR(nn::binary_cross_entropy(b, wanted, {.from_logits = true}).item(),
              nn::binary_cross_entropy_with_logits(b, wanted).item(), 1e-7);
}

// A prediction of 0 for the label costs -log(1e-7), and its gradient is 0, as in Keras.
TEST(KerasSpelling, ClipsProbabilitiesAtKerasEpsilon) {
  const Tensor p = Tensor::from<float>(std::array{0.0F, 1.0F}, {1, 2});
  require_grad(p);
  const Tensor labels = Tensor::from<std::int64_t>(std::array<std::int64_t, 1>{0}, {1});
  const Tensor loss = nn::cross_entropy(p, labels, {.from_logits = false});
  EXPECT_NEAR(loss.item(), -std::log(1e-7), 1e-4);
  loss.backward();
  for (const float slope : grad(p).span<float>()) EXPECT_EQ(slope, 0);
  EXPECT_NEAR(nn::binary_cross_entropy(p, Tensor::from<float>(std::array{1.0F, 1.0F}, {1, 2})).item(),
              -std::log(1e-7) / 2, 1e-4);
}

TEST(KerasSpelling, ASoftmaxWithItsLossIsTheLossOfLogits) {
  manual_seed(4);
  const Tensor logits = random_rows({6, 5}), same = logits.clone();
  require_grad(logits), require_grad(same);
  const Tensor labels = Tensor::from<std::int64_t>(std::array<std::int64_t, 6>{0, 4, 2, 2, -100, 1}, {6});
  nn::Softmax softmax_layer;
  const Tensor loss = nn::cross_entropy(softmax_layer(logits), labels, {.label_smoothing = 0.1F, .from_logits = false}),
               expected = nn::cross_entropy(same, labels, {.label_smoothing = 0.1F});
  EXPECT_NEAR(loss.item(), expected.item(), 1e-5);
  loss.backward(), expected.backward();
  for (std::size_t i = 0; i < grad(same).span<float>().size(); ++i)
    EXPECT_NEAR(grad(logits).span<float>()[i], grad(same).span<float>()[i], 1e-5);
  nn::LogSoftmax log_layer;
  const Tensor rows = slice(labels, 0, {.stop = 4});
  EXPECT_NEAR(nn::nll_loss(log_layer(slice(logits, 0, {.stop = 4})), rows).item(),
              nn::cross_entropy(slice(logits, 0, {.stop = 4}), rows).item(), 1e-5);
}

TEST(KerasSpelling, RefusesTargetsThatDoNotFit) {
  const Tensor p = Tensor::full({2, 3}, 1.0F / 3), wrong = Tensor::full({2, 2}, 0.5F);
  EXPECT_THAT(
      message_of([&] { nn::cross_entropy(p, wrong, {.from_logits = false}); }),
      HasSubstr("targets must be int64 labels or floats of the shape of the probabilities, (2, 3); got (2, 2)"));
  EXPECT_THAT(message_of([&] { nn::binary_cross_entropy(p, wrong); }),
              HasSubstr("binary_cross_entropy: target (2, 2) must have the shape of the probabilities, (2, 3)"));
  EXPECT_THAT(message_of([&] {
                nn::cross_entropy(p, Tensor::full({2, 3}, 0), {.ignore_index = 1, .from_logits = false});
              }),
              HasSubstr("ignore_index 1 only applies to labels"));
}

// Bounds of Keras: sqrt(6 / (fan in + fan out)) for Dense and convolutions, 0.05 for Embedding.
TEST(KerasSpelling, KerasInitGivesKerasInitialWeights) {
  struct Net : nn::Module {
    nn::Embedding words{100, 8, 1};
    nn::Conv1d conv1{8, 16, 5};
    nn::Conv2d conv2{8, 16, {3, 5}, {.groups = 2}};
    nn::Linear out{16, 46};
    nn::LayerNorm norm{16};
    Net() { add("words", words), add("conv1", conv1), add("conv2", conv2), add("out", out), add("norm", norm); }
    Tensor forward(const Tensor& x) override { return x; }
  } net;
  manual_seed(6);
  nn::init::keras_init(net);
  const auto expect_bound = [](const Tensor& weight, double bound) {
    const auto [least, most] = std::minmax_element(weight.span<float>().begin(), weight.span<float>().end());
    EXPECT_LE(*most, bound);
    EXPECT_GE(*least, -bound);
    EXPECT_GT(*most, 0.9 * bound);
    EXPECT_LT(*least, -0.9 * bound);
  };
  expect_bound(net.words.weight, 0.05);
  expect_bound(net.conv1.weight, std::sqrt(6.0 / (5 * 8 + 5 * 16)));
  expect_bound(net.conv2.weight, std::sqrt(6.0 / (15 * 4 + 15 * 16)));  // a kernel (3, 5, 4, 16) of Keras
  expect_bound(net.out.weight, std::sqrt(6.0 / (16 + 46)));
  for (std::size_t i = 8; i < 16; ++i) EXPECT_EQ(net.words.weight.span<float>()[i], 0) << "the row of the padding";
  for (const Tensor& bias : {net.conv1.bias, net.conv2.bias, net.out.bias, net.norm.bias})
    for (const float value : bias.span<float>()) EXPECT_EQ(value, 0);
  for (const float value : net.norm.weight.span<float>()) EXPECT_EQ(value, 1);
  const std::vector<float> first(net.out.weight.span<float>().begin(), net.out.weight.span<float>().end());
  manual_seed(6);
  nn::init::keras_init(net);
  EXPECT_TRUE(std::equal(first.begin(), first.end(), net.out.weight.span<float>().begin())) << "the seed decides";
}

}  // namespace
}  // namespace lockstep
