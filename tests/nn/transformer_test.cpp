// The layers of transformers: their initial values, that they learn, what they print, and their errors.
#include <gmock/gmock.h>

#include <cmath>
#include <sstream>

#include "lockstep/nn/attention.h"
#include "lockstep/nn/dropout.h"
#include "lockstep/nn/embedding.h"
#include "lockstep/nn/norm.h"
#include "lockstep/nn/recurrent.h"
#include "lockstep/nn/transformer.h"
#include "lockstep/tensor/random.h"
#include "tests/support/message_of.h"

namespace lockstep::nn {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

std::string printed(const Module& module) {
  std::ostringstream out;
  out << module;
  return out.str();
}

TEST(TransformerLayers, BeginAsPyTorchs) {
  manual_seed(1);
  const LayerNorm layer({3, 4});
  EXPECT_THAT(layer.weight.span<float>(), Each(1));
  EXPECT_THAT(layer.bias.span<float>(), Each(0));
  const Embedding words(200, 50, 3);
  double square = 0;
  for (const float value : words.weight.span<float>()) square += double{value} * value;
  EXPECT_NEAR(square / 9950, 1, 0.1);
  EXPECT_THAT(words.weight.span<float>().subspan(150, 50), Each(0)) << "the padding row";
  const MultiheadAttention attention(8, 2);
  EXPECT_THAT(attention.in_proj_bias.span<float>(), Each(0));
  EXPECT_THAT(attention.out_proj.bias.span<float>(), Each(0));
  const float bound = std::sqrt(6.0F / (8 + 24));
  for (const float value : attention.in_proj_weight.span<float>()) EXPECT_LE(std::abs(value), bound);
}

TEST(TransformerLayers, NormaliseEachSample) {
  manual_seed(2);
  const Tensor x = Tensor::empty({2, 3, 8});
  fill_normal(x, 5, 2);
  LayerNorm layer(8);
  GroupNorm group(2, 8);
  RMSNorm rms(8);
  for (Module* module : std::initializer_list<Module*>{&layer, &group, &rms}) {
    const Tensor y = (*module)(x);
    EXPECT_EQ(y.shape(), x.shape());
    double square = 0;
    for (const float value : y.span<float>()) square += double{value} * value;
    EXPECT_NEAR(square / 48, 1, 1e-3) << module->kind();
  }
}

// With causal attention, later positions do not change earlier ones.
TEST(TransformerLayers, CausalAttentionDoesNotLookAhead) {
  manual_seed(3);
  MultiheadAttention attention(8, 2, {.causal = true});
  const Tensor x = Tensor::empty({1, 5, 8});
  fill_normal(x, 0, 1);
  const Tensor before = attention(x);
  for (std::int64_t i = 3 * 8; i < 5 * 8; ++i) x.data<float>()[i] += 1;
  const Tensor after = attention(x);
  for (std::int64_t i = 0; i < 3 * 8; ++i) EXPECT_EQ(after.data<float>()[i], before.data<float>()[i]);
  EXPECT_NE(after.data<float>()[3 * 8], before.data<float>()[3 * 8]);
}

// A step along the gradient lowers the loss by as much as its square predicts.
TEST(TransformerLayers, LearnTogether) {
  manual_seed(4);
  Embedding words(7, 8);
  MultiheadAttention attention(8, 2, {.causal = true});
  LayerNorm norm(8);
  const std::vector<std::int64_t> text = {1, 2, 3, 4, 5, 6}, next = {2, 3, 4, 5, 6, 0};
  const Tensor tokens = Tensor::from(std::span(text), {2, 3}), labels = Tensor::from(std::span(next), {6});
  const auto loss = [&] {
    const Tensor x = words(tokens);
    // The head is the embedding's weight.
    const Tensor logits = linear(norm(add(x, attention(x))), words.weight, Tensor());
    return softmax_cross_entropy(reshape(logits, {6, 7}), labels);
  };
  const double before = loss().item();
  loss().backward();
  constexpr float kRate = 1e-3F;
  double expected = 0;
  for (Module* module : std::initializer_list<Module*>{&words, &attention, &norm})
    for (const Tensor& parameter : module->parameters()) {
      ASSERT_TRUE(has_grad(parameter));
      const auto values = parameter.span<float>(), slope = grad(parameter).span<float>();
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] -= kRate * slope[i], expected += double{kRate} * slope[i] * slope[i];
    }
  const double after = loss().item();
  EXPECT_NEAR(before - after, expected, 0.05 * expected);
}

TEST(TransformerLayers, DropOnlyWhileTraining) {
  manual_seed(5);
  Dropout layer(0.5F);
  const Tensor x = Tensor::full({10, 10}, 1);
  EXPECT_THAT(layer(x).span<float>(), ::testing::Contains(0));
  layer.eval();
  EXPECT_THAT(layer(x).span<float>(), Each(1));
  MultiheadAttention attention(8, 2, {.dropout = 0.5F});
  const Tensor batch = Tensor::full({1, 4, 8}, 1);
  EXPECT_THAT(attention(batch).span<float>(), ::testing::Contains(0));
  attention.eval();
  EXPECT_THAT(attention(batch).span<float>(), ::testing::Not(::testing::Contains(0)));
}

TEST(TransformerLayers, HaveTheNamesOfPyTorchs) {
  std::vector<std::string> names;
  const TransformerDecoder decoder(1, 4, 2, {.feedforward = 8, .final_norm = true});
  for (const NamedTensor& each : decoder.named_parameters()) names.push_back(each.name);
  EXPECT_THAT(names, ::testing::IsSupersetOf({"layers.0.self_attn.in_proj_weight", "layers.0.self_attn.out_proj.bias",
                                              "layers.0.multihead_attn.in_proj_bias", "layers.0.linear1.weight",
                                              "layers.0.linear2.bias", "layers.0.norm3.weight", "norm.bias"}));
  EXPECT_EQ(names.size(), 20U);
  names.clear();
  const LSTM lstm(3, 4, {.num_layers = 2, .bidirectional = true});
  for (const NamedTensor& each : lstm.named_parameters()) names.push_back(each.name);
  EXPECT_EQ(names.size(), 16U);
  EXPECT_THAT(names,
              ::testing::IsSupersetOf({"weight_ih_l0", "weight_hh_l1", "bias_ih_l0_reverse", "bias_hh_l1_reverse"}));
  EXPECT_EQ(lstm.weights(1, true).weight_ih.shape(), (Shape{16, 8}));
}

// A query's result does not depend on the keys that a mask, a length or the future hides from it.
TEST(TransformerLayers, DoNotSeeHiddenPositions) {
  manual_seed(6);
  TransformerDecoderLayer layer(8, 2, {.feedforward = 16});
  layer.eval();
  const Tensor x = Tensor::empty({1, 4, 8}), memory = Tensor::empty({1, 5, 8});
  fill_normal(x, 0, 1), fill_normal(memory, 0, 1);
  const std::vector<std::uint8_t> seen = {1, 0, 1, 1, 1};
  const AttentionMasks memory_masks{.key_lengths = {4},
                                    .mask = Tensor::from(std::span<const std::uint8_t>(seen), {1, 5})};
  const auto decoded = [&] { return layer.decode(x, memory, {.causal = true}, memory_masks); };
  const Tensor before = decoded();
  for (std::int64_t c = 0; c < 8; ++c) memory.data<float>()[8 + c] += 1, memory.data<float>()[32 + c] += 1;
  const Tensor same = decoded();
  for (std::int64_t i = 0; i < before.count(); ++i) EXPECT_EQ(same.data<float>()[i], before.data<float>()[i]);
  for (std::int64_t c = 0; c < 8; ++c) x.data<float>()[24 + c] += 1;
  const Tensor after = decoded();
  for (std::int64_t i = 0; i < 24; ++i) EXPECT_EQ(after.data<float>()[i], before.data<float>()[i]);
  memory.data<float>()[0] += 1;
  EXPECT_NE(decoded().data<float>()[0], before.data<float>()[0]);
}

TEST(TransformerLayers, RecurrentLayersDropBetweenThemOnlyWhileTraining) {
  manual_seed(7);
  GRU net(4, 5, {.num_layers = 2, .dropout = 0.5F});
  const Tensor x = Tensor::empty({3, 6, 4});
  fill_normal(x, 0, 1);
  const auto first = [&] { return net(x).data<float>()[0]; };
  const float once = first();
  EXPECT_NE(first(), once);
  net.eval();
  const float evaluated = first();
  EXPECT_EQ(first(), evaluated);
}

TEST(TransformerLayers, PrintTheirSizes) {
  EXPECT_EQ(printed(LayerNorm({3, 4}, {.bias = false})), "LayerNorm((3, 4), eps=1e-05, bias=false)");
  EXPECT_EQ(printed(RMSNorm(4)), "RMSNorm((4), eps=1e-06)");
  EXPECT_EQ(printed(GroupNorm(2, 4, {.affine = false})), "GroupNorm(2, 4, eps=1e-05, affine=false)");
  EXPECT_EQ(printed(Embedding(5, 4, 0)), "Embedding(5, 4, padding=0)");
  EXPECT_EQ(printed(Dropout(0.25F)), "Dropout(p=0.25)");
  EXPECT_THAT(printed(MultiheadAttention(4, 2, {.causal = true})),
              HasSubstr("MultiheadAttention(4, heads=2, causal\n"));
  EXPECT_EQ(printed(LSTM(3, 4, {.num_layers = 2, .bidirectional = true, .dropout = 0.25F})),
            "LSTM(3, 4, num_layers=2, bidirectional, dropout=0.25)");
  EXPECT_EQ(printed(GRU(3, 4, {.bias = false})), "GRU(3, 4, bias=false)");
  EXPECT_THAT(printed(TransformerEncoderLayer(4, 2, {.feedforward = 8, .norm_first = true})),
              HasSubstr("TransformerEncoderLayer(4, feedforward=8, dropout=0.1, activation=relu, norm_first\n"));
}

TEST(TransformerLayers, SayWhatTheyRefuse) {
  EXPECT_THAT(message_of([] { TransformerEncoderLayer(8, 2, {.feedforward = 0}); }),
              HasSubstr("must be positive, got 0"));
  EXPECT_THAT(message_of([] { TransformerDecoder(0, 8, 2); }),
              HasSubstr("TransformerDecoder: every size must be positive, got 0"));
  EXPECT_THAT(
      message_of([] {
        MultiheadAttention(8, 2).attend(Tensor::zeros({1, 4, 8}), Tensor::zeros({2, 5, 8}), Tensor::zeros({2, 5, 8}));
      }),
      HasSubstr("MultiheadAttention: keys (2, 5, 8) and values (2, 5, 8) must have equal shapes, and x's 1 "
                "samples"));
  EXPECT_THAT(message_of([] {
                TransformerEncoder(1, 8, 2).encode(Tensor::zeros({1, 4, 8}), {.key_lengths = {5}});
              }),
              HasSubstr("key_lengths[0] must be in [0, 4]"));
  EXPECT_THAT(message_of([] { MultiheadAttention(8, 3); }),
              HasSubstr("MultiheadAttention: 3 heads do not divide a width of 8"));
  EXPECT_THAT(message_of([] {
                MultiheadAttention(8, 2)(Tensor::zeros({2, 8}));
              }),
              HasSubstr("x (N, T, C) must have 3 dimensions"));
  EXPECT_THAT(message_of([] { GroupNorm(3, 8); }), HasSubstr("GroupNorm: 3 groups do not divide 8 channels"));
  EXPECT_THAT(message_of([] { LayerNorm(0); }), HasSubstr("LayerNorm: extents must be positive, got (0)"));
  EXPECT_THAT(message_of([] { Embedding(4, 0); }), HasSubstr("Embedding: every size must be positive, got 0"));
  EXPECT_THAT(message_of([] { Embedding(4, 2, 4); }), HasSubstr("Embedding: padding 4 is outside 0..3"));
  EXPECT_THAT(message_of([] { Dropout(1); }), HasSubstr("Dropout: p must be in [0, 1), got 1"));
}

}  // namespace
}  // namespace lockstep::nn
