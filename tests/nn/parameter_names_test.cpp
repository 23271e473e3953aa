// Parameters in messages: an operator that rejects a parameter names it by its path, so that users find the layer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "lockstep/autograd/attention.h"
#include "lockstep/autograd/elementwise.h"
#include "lockstep/autograd/matmul.h"
#include "lockstep/nn/batch_norm.h"
#include "lockstep/nn/embedding.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/norm.h"
#include "tests/support/message_of.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

struct Trunk : nn::Module {
  nn::Linear hidden{5, 4};
  nn::Conv2d conv{4, 6, {3, 3}, {.groups = 2}};
  nn::Conv1d conv1d{4, 6, 3};
  nn::LayerNorm norm{4};
  nn::BatchNorm2d batch_norm{4};
  nn::Embedding words{7, 4};
  Tensor gain = Tensor::zeros({4});
  Trunk() {
    add("hidden", hidden);
    add("conv", conv);
    add("conv1d", conv1d);
    add("norm", norm);
    add("batch_norm", batch_norm);
    add("words", words);
    add_parameter("gain", gain);
  }
};

struct Model : nn::Module {
  Trunk block;
  Model() { add("block", block); }
};

TEST(ParameterNames, ArePathsFromTheOutermostModule) {
  Model net;
  for (const NamedTensor& parameter : net.named_parameters())
    EXPECT_EQ(describe(parameter.tensor),
              fmt::format("parameter '{}' of shape {}", parameter.name, parameter.tensor.shape().text()));
  EXPECT_EQ(name_argument("weight", net.block.hidden.weight), "weight 'block.hidden.weight'");
  EXPECT_EQ(name_argument("weight", Tensor::zeros({2})), "weight");
  EXPECT_EQ(name_argument("weight", Tensor()), "weight");
}

TEST(ParameterNames, StandInTheMessagesOfLayers) {
  Model net;
  Trunk& block = net.block;
  EXPECT_EQ(message_of([&] {
              block.hidden(Tensor::zeros({2, 3}));
            }),
            "linear: weight 'block.hidden.weight' (4, 5) expects 5 features, but x (2, 3) has 3");
  EXPECT_THAT(message_of([&] {
                block.conv(Tensor::zeros({1, 5, 5, 8}));
              }),
              HasSubstr("conv2d: weight 'block.conv.weight' (6, 3, 3, 2) expects 4 channels in 2 groups"));
  EXPECT_THAT(message_of([&] {
                block.conv(Tensor::zeros({1, 5, 5, 3}));
              }),
              HasSubstr("the 6 filters of weight 'block.conv.weight' (6, 3, 3, 2)"));
  EXPECT_THAT(message_of([&] {
                block.conv1d(Tensor::zeros({1, 5, 3}));
              }),
              HasSubstr("conv1d: weight 'block.conv1d.weight' (6, 3, 4)"));
  EXPECT_THAT(message_of([&] {
                block.batch_norm(Tensor::zeros({4, 3}));
              }),
              HasSubstr("weight (C) 'block.batch_norm.weight' (4) does not match the 3 channels"));
  EXPECT_THAT(message_of([&] { block.words(Tensor::from<std::int64_t>(std::vector<std::int64_t>{7}, {1})); }),
              HasSubstr("index 7 at position 0 is outside 0..6, the rows of weight 'block.words.weight'"));
}

TEST(ParameterNames, StandInTheMessagesOfOperators) {
  Model net;
  Trunk& block = net.block;
  const Tensor x = Tensor::zeros({2, 5}), heads = Tensor::zeros({1, 2, 2, 4});
  EXPECT_EQ(message_of([&] { linear(x, block.hidden.weight, block.words.weight); }),
            "linear: bias (O) 'block.words.weight' must have 1 dimensions, got (7, 4)");
  EXPECT_THAT(message_of([&] {
                linear(Tensor::zeros({2, 4}), block.words.weight, block.gain);
              }),
              HasSubstr("bias 'block.gain' (4) does not match weight 'block.words.weight' (7, 4)"));
  EXPECT_THAT(message_of([&] { layer_norm(x, {5}, block.norm.weight, block.norm.bias); }),
              HasSubstr("layer_norm: weight 'block.norm.weight' (5) expected, got (4)"));
  EXPECT_THAT(message_of([&] { bias_add(x, block.gain); }),
              HasSubstr("bias 'block.gain' (4) does not match the last dimension of x (2, 5)"));
  EXPECT_THAT(message_of([&] { matmul(x, block.words.weight); }),
              HasSubstr("a (2, 5) and b 'block.words.weight' (7, 4) do not match"));
  EXPECT_THAT(message_of([&] { mul(x, block.gain); }),
              HasSubstr("mul: shapes (2, 5) and (4) 'block.gain' do not match"));
  EXPECT_THAT(message_of([&] { scaled_dot_product_attention(heads, heads, block.conv.weight); }),
              HasSubstr("v 'block.conv.weight' (6, 3, 3, 2)"));
  EXPECT_THAT(message_of([&] { embedding(block.gain, Tensor::zeros({1}, DType::kInt64)); }),
              HasSubstr("weight (V, D) 'block.gain' must have 2"));
}

// A layer that is appended to a module which was added before is named by its path from there.
TEST(ParameterNames, OfALateLayerBeginAtItsContainer) {
  nn::Sequential inner, outer;
  outer.append<nn::Linear>(2, 3);
  inner.append<nn::Linear>(3, 3);
  EXPECT_EQ(name_argument("w", outer.named_parameters()[0].tensor), "w '0.weight'");
  EXPECT_THAT(message_of([&] {
                outer(Tensor::zeros({1, 4}));
              }),
              HasSubstr("weight '0.weight' (3, 2) expects 2 features"));
}

}  // namespace
}  // namespace lockstep
