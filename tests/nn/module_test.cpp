// Modules: names, order, initialisation, the output of summary(), and that a network of them learns.
#include "lockstep/nn/module.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "lockstep/nn/layers.h"
#include "lockstep/nn/loss.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/tensor/random.h"
#include "tests/support/message_of.h"

namespace lockstep {
namespace {

struct Block : nn::Module {
  nn::Linear first{4, 8, {.activation = Activation::kReLU}}, second{8, 3};
  Tensor mean = Tensor::zeros({3});
  Block() {
    add("first", first);
    add("second", second);
    add_buffer("mean", mean);
  }
  Tensor forward(const Tensor& x) override { return second(first(x)); }
  std::string kind() const override { return "Block"; }
};

struct Net : nn::Module {
  Block block;
  nn::Linear out{3, 2, {.bias = false}};
  Tensor gain = Tensor::full({1}, 1);
  Net() {
    add_parameter("gain", gain);
    add("block", block);
    add("out", out);
  }
  Tensor forward(const Tensor& x) override { return out(block(x)); }
  std::string kind() const override { return "Net"; }
};

std::vector<std::string> names_of(const std::vector<NamedTensor>& tensors) {
  std::vector<std::string> names;
  for (const NamedTensor& named : tensors) names.push_back(named.name);
  return names;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && std::memcmp(a.data<float>(), b.data<float>(), a.bytes()) == 0;
}

TEST(Module, HoldsItselfNowhere) {
  struct Holder : nn::Module {
    using nn::Module::add;
    std::string kind() const override { return "Holder"; }
  } outer, inner;
  EXPECT_EQ(message_of([&] { outer.add("self", outer); }),
            "Holder: the child 'self' is, or contains, the module itself");
  outer.add("inner", inner);
  EXPECT_EQ(message_of([&] { inner.add("outer", outer); }),
            "Holder: the child 'outer' is, or contains, the module itself");
  EXPECT_EQ(outer.children().size(), 1U);
}

TEST(Module, NamesItsTensorsDepthFirstInOrderOfRegistration) {
  const Net net;
  EXPECT_EQ(names_of(net.named_parameters()),
            (std::vector<std::string>{"gain", "block.first.weight", "block.first.bias", "block.second.weight",
                                      "block.second.bias", "out.weight"}));
  EXPECT_EQ(names_of(net.named_buffers()), std::vector<std::string>{"block.mean"});
  for (const Tensor& parameter : net.parameters()) EXPECT_TRUE(requires_grad(parameter));
  EXPECT_FALSE(requires_grad(net.block.mean));
  EXPECT_TRUE(net.named_parameters()[1].tensor.is_same(net.block.first.weight)) << "handles, not copies";
}

TEST(Module, RefusesNamesThatWouldCollideOrMislead) {
  struct Wrong : nn::Module {
    explicit Wrong(const std::string& first, const std::string& second) {
      add(first, child);
      add_buffer(second, buffer);
    }
    Tensor forward(const Tensor& x) override { return x; }
    nn::ReLU child;
    Tensor buffer = Tensor::zeros({1});
  };
  EXPECT_THROW(Wrong("a", "a"), InvalidArgument);
  EXPECT_THROW(Wrong("", "a"), InvalidArgument);
  EXPECT_THROW(Wrong("a", "b.c"), InvalidArgument);
  EXPECT_NO_THROW(Wrong("a", "b"));
}

TEST(Module, TrainingModeReachesTheChildren) {
  Net net;
  EXPECT_TRUE(net.block.first.is_training());
  net.train(false);
  EXPECT_FALSE(net.block.first.is_training());
  net.train();
  EXPECT_TRUE(net.out.is_training());
}

TEST(Layers, TheSeedAloneDecidesTheWeights) {
  manual_seed(5);
  const Net a;
  manual_seed(5);
  const Net again;
  manual_seed(6);
  const Net other;
  for (std::size_t i = 1; i < a.parameters().size(); ++i) {
    EXPECT_TRUE(same_bits(a.parameters()[i], again.parameters()[i])) << a.named_parameters()[i].name;
    EXPECT_FALSE(same_bits(a.parameters()[i], other.parameters()[i])) << a.named_parameters()[i].name;
  }
}

TEST(Layers, WeightsFillTheirRangeOfOneOverTheRootOfTheFanIn) {
  manual_seed(1);
  const nn::Conv2d conv(16, 32, {5, 5});
  EXPECT_EQ(conv.weight.shape(), (Shape{32, 5, 5, 16}));
  const nn::Linear linear(400, 32);
  for (const Tensor& weight : {conv.weight, linear.weight}) {  // both have a fan in of 400
    float largest = 0;
    double square = 0;
    for (const float value : weight.span<float>())
      largest = std::max(largest, std::abs(value)), square += double{value} * value;
    EXPECT_LE(largest, 0.05f);
    EXPECT_GT(largest, 0.0499f);
    EXPECT_NEAR(std::sqrt(square / static_cast<double>(weight.count())), 0.05 / std::sqrt(3.0), 5e-4);
  }
  EXPECT_EQ(conv.bias.shape(), Shape{32});
  EXPECT_FALSE(nn::Linear(2, 2, {.bias = false}).bias.defined());
  EXPECT_THROW(nn::Linear(0, 2), InvalidArgument);
  EXPECT_THROW(nn::Conv2d(3, 4, {5, 0}), InvalidArgument);
}

TEST(Sequential, IsMadeFromAList) {
  nn::Sequential net(std::make_unique<nn::Linear>(2, 3), std::make_unique<nn::ReLU>(),
                     std::make_unique<nn::Linear>(3, 1));
  EXPECT_EQ(net.size(), 3U);
  EXPECT_EQ(net(Tensor::zeros({4, 2})).shape(), Shape({4, 1}));
  EXPECT_EQ(net.named_parameters().back().name, "2.bias");
  EXPECT_THROW(net.append_module(nullptr), InvalidArgument);
}

TEST(Sequential, RunsItsModulesInOrderAndNumbersThem) {
  nn::Sequential net;
  net.append<nn::Flatten>();
  nn::Linear& hidden = net.append_named<nn::Linear>("hidden", 4, 2);
  net.append<nn::ReLU>();
  EXPECT_EQ(names_of(net.named_parameters()), (std::vector<std::string>{"hidden.weight", "hidden.bias"}));
  EXPECT_EQ(net.children()[2].first, "2");
  hidden.weight.fill(1);
  hidden.bias.fill(-3);
  const Tensor y = net(Tensor::full({1, 2, 2, 1}, 1));
  EXPECT_EQ(y.shape(), (Shape{1, 2}));
  EXPECT_EQ(y.data<float>()[1], 1);
}

TEST(Summary, IsATableWithShapesAndCounts) {
  manual_seed(1);
  nn::Sequential net;
  net.append_named<nn::Conv2d>("conv1", 3, 64, Size2{5, 5}, nn::Conv2dLayerOptions{.padding = Same{}});
  net.append_named<nn::MaxPool2d>("pool1", Size2{2, 2});
  net.append_named<nn::Flatten>("flat");
  net.append_named<nn::Linear>("out", 12 * 12 * 64, 10);
  EXPECT_EQ(nn::summary(net, {8, 24, 24, 3}),
            "name   kind        output           parameters\n"
            "conv1  Conv2d      (8, 24, 24, 64)       4,864\n"
            "pool1  MaxPool2d   (8, 12, 12, 64)           0\n"
            "flat   Flatten     (8, 9216)                 0\n"
            "out    Linear      (8, 10)              92,170\n"
            "total  Sequential  (8, 10)              97,034\n");
  EXPECT_FALSE(NoGrad::active());
  EXPECT_THROW(nn::summary(net, {8, 20, 24, 3}), InvalidArgument);
  EXPECT_NO_THROW(nn::summary(net, {8, 24, 24, 3})) << "a rejected summary leaves no state over";
}

TEST(CountCorrect, TakesTheFirstOfEqualsAndNamesWrongShapes) {
  const std::array<float, 9> scores = {0, 1, 1, 5, 2, 3, -2, -3, -1};
  const std::array<std::int64_t, 3> wanted = {1, 2, 2};
  const Tensor logits = Tensor::from<float>(scores, {3, 3}), labels = Tensor::from<std::int64_t>(wanted, {3});
  EXPECT_EQ(nn::count_correct(logits, labels), 2);
  EXPECT_THROW(nn::count_correct(logits, Tensor::zeros({2}, DType::kInt64)), InvalidArgument);
}

// No linear model can separate the classes of exclusive or.
TEST(Training, ASmallNetworkLearnsExclusiveOrTheSameWayEveryTime) {
  const std::array<float, 8> inputs = {0, 0, 0, 1, 1, 0, 1, 1};
  const std::array<std::int64_t, 4> classes = {0, 1, 1, 0};
  const Tensor x = Tensor::from<float>(inputs, {4, 2}), labels = Tensor::from<std::int64_t>(classes, {4});
  const auto train = [&] {
    manual_seed(3);
    nn::Sequential net;
    net.append<nn::Linear>(2, 16, nn::LinearLayerOptions{.activation = Activation::kReLU});
    net.append<nn::Linear>(16, 2);
    optim::SGD sgd(net.named_parameters(), {.lr = 0.2f, .momentum = 0.9f});
    for (int step = 0; step < 200; ++step) {
      const Tensor loss = nn::cross_entropy(net(x), labels);
      sgd.zero_grad();
      loss.backward();
      sgd.step();
    }
    const NoGrad no_grad;
    return net(x);
  };
  const Tensor logits = train();
  EXPECT_EQ(nn::count_correct(logits, labels), 4);
  EXPECT_LT(softmax_cross_entropy(logits, labels).item(), 0.05f);
  EXPECT_TRUE(same_bits(logits, train()));
}

TEST(Module, RefusesWhatIsEmptyByName) {
  struct WithNone : nn::Module {
    Tensor none;
    WithNone() { add_parameter("p", none); }
    Tensor forward(const Tensor& x) override { return x; }
  };
  Block block;
  EXPECT_NE(message_of([] { const WithNone module; }).find("add_parameter: 'p' is an undefined tensor"),
            std::string::npos);
  EXPECT_NE(message_of([&] { block.apply({}); }).find("apply: the function is empty"), std::string::npos);
  EXPECT_EQ(message_of([&] { const auto handle = register_grad_hook(block.first.weight, {}); }),
            "register_grad_hook: the hook is empty");
}

TEST(Module, KeepsItsBuffersWhenAProgramWritesPlusEquals) {
  struct Counter : nn::Module {
    Tensor count = Tensor::zeros({1});
    Counter() { add_buffer("count", count); }
  } net;
  EXPECT_NE(message_of([&] { net.count += 1; }).find("is registered in a module"), std::string::npos);
  net.count.copy_from(net.count + 1);
  EXPECT_EQ(net.named_buffers()[0].tensor.data<float>()[0], 1);
}

}  // namespace
}  // namespace lockstep
