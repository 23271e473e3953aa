// Modules as text, and that a summary changes nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <sstream>

#include "lockstep/nn/layers.h"
#include "lockstep/tensor/random.h"

namespace lockstep {
namespace {

template <typename T> std::string text_of(const T& object) {
  std::ostringstream text;
  text << object;
  return text.str();
}

TEST(PrintedModule, IsATreeWithTheOptionsOfEachLayer) {
  nn::Sequential net;
  auto& features = net.append_named<nn::Sequential>("features");
  features.append<nn::Conv2d>(3, 64, Size2{5, 3},
                              nn::Conv2dLayerOptions{.padding = Same{}, .activation = Activation::kReLU});
  features.append<nn::Conv2d>(64, 8, Size2{3, 3},
                              nn::Conv2dLayerOptions{.stride = {2, 1}, .padding = Padding::all(1), .bias = false});
  features.append<nn::MaxPool2d>(Size2{3, 3}, MaxPool2dOptions{.stride = {2, 2}, .padding = Padding{0, 0, 1, 1}});
  features.append<nn::MaxPool2d>(Size2{2, 2});
  features.append<nn::LocalResponseNorm>();
  net.append<nn::Flatten>();
  net.append_named<nn::Linear>("out", 784, 10, nn::LinearLayerOptions{.bias = false});
  EXPECT_EQ(text_of(net),
            "Sequential(\n"
            "  (features): Sequential(\n"
            "    (0): Conv2d(3, 64, kernel=(5, 3), stride=(1, 1), padding=same, activation=relu)\n"
            "    (1): Conv2d(64, 8, kernel=(3, 3), stride=(2, 1), padding=1, bias=false)\n"
            "    (2): MaxPool2d((3, 3), stride=(2, 2), padding=(top=0, left=0, bottom=1, right=1))\n"
            "    (3): MaxPool2d((2, 2), stride=(2, 2))\n"
            "    (4): LocalResponseNorm(radius=5, bias=1, alpha=1, beta=0.5)\n"
            "  )\n"
            "  (1): Flatten()\n"
            "  (out): Linear(784, 10, bias=false)\n"
            ")");
  EXPECT_EQ(text_of(nn::ReLU()), "ReLU()");
}

// The forms that PyTorch's users write.
TEST(PrintedModule, TakesOneNumberForBothDirections) {
  EXPECT_EQ(text_of(nn::Conv2d(3, 16, 3)), "Conv2d(3, 16, kernel=(3, 3), stride=(1, 1))");
  EXPECT_EQ(text_of(nn::Conv2d(3, 16, 3, {.stride = 2, .padding = 1})),
            "Conv2d(3, 16, kernel=(3, 3), stride=(2, 2), padding=1)");
  EXPECT_EQ(text_of(nn::Conv2d(3, 16, {3, 5}, {.padding = {1, 2}})),
            "Conv2d(3, 16, kernel=(3, 5), stride=(1, 1), padding=(top=1, left=2, bottom=1, right=2))");
  EXPECT_EQ(text_of(nn::Conv2d(3, 16, 3, {.padding = Padding{1}})),
            "Conv2d(3, 16, kernel=(3, 3), stride=(1, 1), padding=1)");
  EXPECT_EQ(text_of(nn::MaxPool2d(2)), "MaxPool2d((2, 2), stride=(2, 2))");
  EXPECT_EQ(text_of(nn::Conv1d(3, 16, 5, {.padding = Padding1d{2}})), text_of(nn::Conv1d(3, 16, 5, {.padding = 2})));
  nn::Sequential net;
  EXPECT_EQ(text_of(net.append<nn::Conv2d>(3, 16, 3)), text_of(nn::Conv2d(3, 16, Size2{3, 3})));
}

// Looks its integers up, draws random numbers, and counts its passes when in training mode.
struct Lookup : nn::Module {
  Tensor table = Tensor::full({4, 2}, 1), passes = Tensor::zeros({1});
  nn::Linear unused{1, 1};
  Lookup() {
    add_parameter("table", table);
    add_buffer("passes", passes);
    add("unused", unused);
  }
  Tensors forward_all(const Tensors& inputs) override {
    check_inputs(inputs, 2);
    if (is_training()) passes.span<float>()[0] += 1;
    fill_uniform(Tensor::empty({1}), 0, 1);
    const Tensor rows = Tensor::empty({inputs[0].count(), 2});
    for (std::size_t i = 0; const std::int64_t index : inputs[0].span<std::int64_t>()) {
      for (std::size_t column = 0; column < 2; ++column)
        rows.span<float>()[2 * i + column] = table.span<float>()[2 * static_cast<std::size_t>(index) + column];
      ++i;
    }
    return {rows, scale(inputs[1], 2)};
  }
  std::string kind() const override { return "Lookup"; }
};

TEST(Summary, TakesSeveralInputsOfAnyType) {
  Lookup net;
  EXPECT_EQ(nn::summary(net, {{{5}, DType::kInt64}, {{3, 1}}}),
            "name    kind    output          parameters\n"
            "unused  Linear  -                        2\n"
            "total   Lookup  (5, 2), (3, 1)          10\n");
  const std::array<nn::InputSpec, 2> inputs = {nn::InputSpec{{5}, DType::kInt64}, nn::InputSpec{{3, 1}}};
  EXPECT_EQ(nn::summary(net, inputs), nn::summary(net, {{{5}, DType::kInt64}, {{3, 1}}}));
  EXPECT_THROW(nn::summary(net, {5}), InvalidArgument) << "one input of shape (5)";
}

TEST(Summary, ChangesNothing) {
  manual_seed(4);
  nn::Sequential net;
  auto& lookup = net.append<Lookup>();
  lookup.unused.eval();
  const RandomState random = random_state();
  nn::summary(net, {{{5}, DType::kInt64}, {{3, 1}}});
  EXPECT_EQ(random_state(), random);
  EXPECT_EQ(lookup.passes.item(), 0) << "in eval mode";
  EXPECT_TRUE(net.is_training() && lookup.is_training());
  EXPECT_FALSE(lookup.unused.is_training()) << "each module's own mode";
  EXPECT_FALSE(has_grad(lookup.table));
  EXPECT_FALSE(NoGrad::active());
  EXPECT_THROW(nn::summary(net, {{{5}, DType::kFloat32}, {{3, 1}}}), InvalidArgument);
  EXPECT_EQ(random_state(), random) << "after a summary that failed";
  EXPECT_TRUE(lookup.is_training());
  EXPECT_FALSE(lookup.unused.is_training());
}

}  // namespace
}  // namespace lockstep
