// Models without files: caches of keys, low-rank layers, containers, what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/variable.h"
#include "lockstep/models/bert.h"
#include "lockstep/models/gpt2.h"
#include "lockstep/models/llama.h"
#include "lockstep/models/resnet.h"
#include "lockstep/nn/lora.h"
#include "lockstep/tensor/random.h"
#include "tests/support/message_of.h"

namespace lockstep::models {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Tensor some_ids(std::int64_t batch, std::int64_t length, std::int64_t vocabulary) {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < batch * length; ++i) ids.push_back(i * 7 % vocabulary);
  return Tensor::from(std::span<const std::int64_t>(ids), {batch, length});
}

LlamaConfig small_llama() {
  return {.vocabulary = 11, .positions = 16, .width = 16, .inner = 24, .layers = 2, .heads = 4, .key_value_heads = 2};
}

TEST(Llama, ACacheGivesTheLogitsOfTheWholeSequence) {
  manual_seed(3);
  Llama net(small_llama());
  const NoGrad no_grad;
  const Tensor ids = some_ids(2, 9, 11), whole = net(ids);
  KeyValueCache cache = net.make_cache();
  for (const auto& [begin, end] : {std::pair{0, 4}, std::pair{4, 5}, std::pair{5, 9}}) {
    const Tensor logits = net.next(slice(ids, 1, {begin, end}), cache);
    EXPECT_EQ(logits.shape(), (Shape{2, 1, 11}));
    for (std::int64_t n = 0; n < 2; ++n)
      for (std::int64_t word = 0; word < 11; ++word)
        EXPECT_NEAR(logits.data<float>()[n * 11 + word], whole.data<float>()[(n * 9 + end - 1) * 11 + word], 1e-5);
  }
  EXPECT_EQ(cache.length, 9);
  EXPECT_THAT(message_of([&] { net.next(some_ids(2, 8, 11), cache); }),
              HasSubstr("the model has 16 positions, and ids (2, 8) need 17"));
}

TEST(Models, RefuseWhatTheyCannotBe) {
  EXPECT_THAT(message_of([] { Gpt2({.width = 10, .layers = 1, .heads = 3}); }),
              HasSubstr("3 heads do not divide a width of 10"));
  LlamaConfig config = small_llama();
  config.key_value_heads = 3;
  EXPECT_THAT(message_of([&] { Llama net(config); }),
              HasSubstr("key heads that divide the 4 heads, got width 4 and 3 key heads"));
  config = {.heads = 0};
  EXPECT_THAT(message_of([&] { Llama net(config); }),
              HasSubstr("expected heads of at least 1 and key_value_heads of at least 0, got 0 and 0"));
  EXPECT_THAT(message_of([&] { LlamaAttention attention(config); }), HasSubstr("heads of at least 1"));
  EXPECT_THAT(config.json(), HasSubstr("\"num_attention_heads\": 0"));
  config = {.heads = 4, .key_value_heads = -1};
  EXPECT_THAT(message_of([&] { Llama net(config); }), HasSubstr("got 4 and -1"));
  Bert net({.vocabulary = 9, .positions = 4, .width = 8, .layers = 1, .heads = 2, .inner = 8, .pooler = false});
  EXPECT_THAT(message_of([&] { net(some_ids(1, 5, 9)); }), HasSubstr("the model has 4 positions"));
  EXPECT_THAT(message_of([&] {
                net.encode(some_ids(2, 3, 9), {1, 4});
              }),
              HasSubstr("lengths must be in [0, 3], the number of positions, got 4"));
  EXPECT_THAT(message_of([&] { net.pool(Tensor::zeros({1, 2, 8})); }), HasSubstr("this model has no pooler"));
}

TEST(Models, ResNetsHaveTorchvisionsNumbersOfParameters) {
  const auto count = [](const ResNetConfig& config) {
    std::int64_t all = 0;
    const ResNet net(config);
    for (const Tensor& parameter : net.parameters()) all += parameter.count();
    return all;
  };
  EXPECT_EQ(count(ResNetConfig::resnet18()), 11'689'512);
  EXPECT_EQ(count(ResNetConfig::resnet50()), 25'557'032);
}

TEST(Models, APaddedBatchOfBertDoesNotSeeItsPadding) {
  manual_seed(4);
  Bert net({.vocabulary = 9, .positions = 8, .width = 8, .layers = 2, .heads = 2, .inner = 8});
  net.eval();
  const NoGrad no_grad;
  const Tensor ids = some_ids(1, 3, 9), alone = net.encode(ids);
  std::vector<std::int64_t> padded(ids.data<std::int64_t>(), ids.data<std::int64_t>() + 3);
  padded.insert(padded.end(), {8, 8, 8});
  const Tensor together = net.encode(Tensor::from(std::span<const std::int64_t>(padded), {1, 6}), {3});
  for (std::int64_t i = 0; i < alone.count(); ++i) EXPECT_NEAR(together.data<float>()[i], alone.data<float>()[i], 1e-5);
}

TEST(Models, ARowOfZerosHasAFiniteGradientWhenItIsNormalized) {
  const Tensor x = Tensor::zeros({2, 3});
  x.data<float>()[0] = 3, x.data<float>()[1] = 4;
  require_grad(x);
  const Tensor y = normalize(x);
  EXPECT_NEAR(y.data<float>()[1], 0.8, 1e-6);
  sum(y * y).backward();
  for (const float each : grad(x).span<float>()) EXPECT_TRUE(std::isfinite(each)) << each;
}

// -- low-rank adaptation

struct TwoLinears : nn::Module {
  nn::Linear first{4, 6, {.activation = Activation::kReLU}}, second{6, 3};
  TwoLinears() { add("first", first), add("second", second); }
  Tensor forward(const Tensor& x) override { return second(first(x)); }
  std::string kind() const override { return "TwoLinears"; }
};

std::vector<std::string> trained_names(const nn::Module& module) {
  std::vector<std::string> names;
  for (const NamedTensor& each : module.named_parameters())
    if (requires_grad(each.tensor)) names.push_back(each.name);
  return names;
}

TEST(Lora, BeginsAsTheLayerAndTrainsOnlyItsMatrices) {
  manual_seed(5);
  TwoLinears net;
  const Tensor x = Tensor::full({2, 4}, 0.5F), before = net(x);
  EXPECT_THAT(nn::add_lora(net, {.rank = 2}), ElementsAre("first", "second"));
  const Tensor after = net(x);
  for (std::int64_t i = 0; i < before.count(); ++i) EXPECT_EQ(after.data<float>()[i], before.data<float>()[i]);
  EXPECT_THAT(trained_names(net), ElementsAre("first.lora_A.weight", "first.lora_B.weight", "second.lora_A.weight",
                                              "second.lora_B.weight"));
  sum(after).backward();
  EXPECT_FALSE(requires_grad(net.first.weight));
  for (const NamedTensor& each : net.named_parameters())
    EXPECT_EQ(requires_grad(each.tensor) && has_grad(each.tensor), each.name.find("lora") != std::string::npos);
}

TEST(Lora, MergedWeightsComputeTheSame) {
  manual_seed(6);
  TwoLinears net;
  nn::add_lora(net, {.rank = 2, .alpha = 6, .target = "first"});
  for (const NamedTensor& each : net.named_parameters())
    if (requires_grad(each.tensor)) fill_uniform(each.tensor, -1, 1);
  const Tensor x = Tensor::full({2, 4}, 0.5F), y = net(x);
  const std::vector<NamedTensor> merged = nn::merged_state_dict(net);
  EXPECT_EQ(merged.size(), 4U);
  TwoLinears plain;
  plain.load_state_dict(merged);
  nn::merge_lora(net);
  EXPECT_EQ(net.named_parameters().size(), 4U);
  for (TwoLinears* const each : {&plain, &net})
    for (std::int64_t i = 0; i < y.count(); ++i) EXPECT_NEAR((*each)(x).data<float>()[i], y.data<float>()[i], 1e-5);
  EXPECT_THAT(message_of([&] { nn::merge_lora(net); }), HasSubstr("no Linear of TwoLinears has lora_A"));
}

TEST(Lora, MergedWeightsHaveTheirPrecisionUnderAnAutoCast) {
  manual_seed(6);
  TwoLinears net;
  nn::add_lora(net, {.rank = 2});
  for (const NamedTensor& each : net.named_parameters()) fill_uniform(each.tensor, -1, 1);
  const std::vector<NamedTensor> expected = nn::merged_state_dict(net);
  const AutoCast cast(DType::kBFloat16);
  const std::vector<NamedTensor> merged = nn::merged_state_dict(net);
  nn::merge_lora(net);
  const std::vector<NamedTensor> after = net.state_dict();
  for (std::size_t i = 0; i < expected.size(); ++i)
    for (std::int64_t at = 0; at < expected[i].tensor.count(); ++at) {
      EXPECT_EQ(merged[i].tensor.data<float>()[at], expected[i].tensor.data<float>()[at]) << expected[i].name;
      EXPECT_EQ(after[i].tensor.data<float>()[at], expected[i].tensor.data<float>()[at]) << expected[i].name;
    }
}

TEST(Lora, CallsWithOtherTargetsAddToEachOther) {
  TwoLinears net;
  nn::add_lora(net, {.rank = 2, .target = "first"});
  nn::add_lora(net, {.rank = 1, .target = "second"});
  EXPECT_EQ(trained_names(net).size(), 4U);
  EXPECT_EQ(describe(net.second.low_rank() != nullptr ? net.parameters().back() : Tensor()),
            "parameter 'second.lora_B.weight' of shape (3, 1)");
}

TEST(Lora, TiedWeightsAreRefused) {
  struct Tied : nn::Module {
    nn::Linear in{3, 3}, out{3, 3};
    Tied() { out.weight.rebind(in.weight.buffer()), add("in", in), add("out", out); }
  } net;
  EXPECT_THAT(message_of([&] { nn::add_lora(net, {.rank = 1, .target = "out"}); }),
              HasSubstr("'out.weight' shares its memory with 'in.weight'"));
}

TEST(Lora, SaysWhatItRefuses) {
  TwoLinears net;
  const auto refusal = [&](const nn::LoraOptions& options) { return message_of([&] { nn::add_lora(net, options); }); };
  EXPECT_THAT(refusal({.rank = 2, .target = "third"}),
              AllOf(HasSubstr("'third' matches the path of no Linear"), HasSubstr("'first'")));
  EXPECT_THAT(refusal({.rank = 2, .target = "("}), HasSubstr("is not a regular expression"));
  EXPECT_THAT(refusal({.rank = 7}), HasSubstr("rank 7 is larger than both sizes of 'first' (6, 4)"));
  EXPECT_THAT(refusal({.rank = 0}), HasSubstr("rank must be at least 1"));
  EXPECT_THAT(refusal({.dropout = 1}), HasSubstr("dropout must be in [0, 1)"));
  EXPECT_EQ(trained_names(net).size(), 4U) << "nothing was frozen";
  nn::add_lora(net, {.rank = 2});
  EXPECT_THAT(refusal({.rank = 2}), HasSubstr("'first' has lora_A and lora_B already"));
}

// -- containers

TEST(Containers, GiveTheirModulesNumbersOrNames) {
  struct Net : nn::Module {
    nn::ModuleList<nn::Linear> list;
    nn::ModuleDict<> dict;
    Net() {
      list.append(1, 2), list.append(2, 3);
      dict.insert<nn::Linear>("left", 1, 1), dict.insert<nn::ReLU>("right");
      add("list", list), add("dict", dict);
    }
  } net;
  std::vector<std::string> names;
  for (const NamedTensor& each : net.named_parameters()) names.push_back(each.name);
  EXPECT_THAT(names, ElementsAre("list.0.weight", "list.0.bias", "list.1.weight", "list.1.bias", "dict.left.weight",
                                 "dict.left.bias"));
  std::int64_t outputs = 0;
  for (const nn::Linear& layer : net.list) outputs += layer.weight.shape()[0];
  EXPECT_EQ(outputs, 5);
  EXPECT_THAT(message_of([&] { net.list.at(2); }), HasSubstr("index 2 of 2 modules"));
  EXPECT_THAT(net.dict.names(), ElementsAre("left", "right"));
  EXPECT_TRUE(net.dict.contains("right"));
  EXPECT_THAT(message_of([&] { net.dict.at("up"); }), HasSubstr("there is no module 'up', only: left, right"));
  EXPECT_THAT(message_of([&] { net.dict.insert<nn::ReLU>("left"); }), HasSubstr("used already"));
}

}  // namespace
}  // namespace lockstep::models
