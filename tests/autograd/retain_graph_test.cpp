// backward() for tensors of any shape, and several passes over one tape.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/autograd/gradient_check.h"
#include "tests/support/message_of.h"

namespace lockstep {
namespace {

std::vector<float> elements_of(const Tensor& tensor) {
  return {tensor.span<float>().begin(), tensor.span<float>().end()};
}

Tensor leaf_from(const std::vector<float>& values, const Shape& shape) {
  const Tensor leaf = Tensor::from<float>(values, shape);
  require_grad(leaf);
  return leaf;
}

TEST(BackwardOfATensor, MultipliesTheGradientWithTheJacobian) {
  const Tensor x = leaf_from({-1, 2, 3}, {3}), gradient = Tensor::from<float>(std::vector<float>{5, 7, 11}, {3});
  relu(scale(x, 2)).backward({.gradient = gradient});
  EXPECT_EQ(elements_of(grad(x)), (std::vector<float>{0, 14, 22}));
  EXPECT_EQ(elements_of(gradient), (std::vector<float>{5, 7, 11}))
      << "relu masks its gradient in place: not the caller's memory";
  EXPECT_EQ(gradient.version(), Tensor::from<float>(std::vector<float>{5, 7, 11}, {3}).version());
}

TEST(BackwardOfATensor, AScalarsGradientScales) {
  const Tensor x = leaf_from({2}, {});
  backward(scale(x, 3), {.gradient = Tensor::full({}, 10)});
  EXPECT_EQ(grad(x).item(), 30);
}

TEST(BackwardOfATensor, ALeafReceivesTheGradientItself) {
  const Tensor x = leaf_from({2, 3}, {2});
  int calls = 0;
  const HookHandle hook = register_grad_hook(x, [&](const Tensor&) { ++calls; });
  x.backward({.gradient = Tensor::full({2}, 4)});
  x.backward({.gradient = Tensor::full({2}, 1)});
  EXPECT_EQ(elements_of(grad(x)), (std::vector<float>{5, 5}));
  EXPECT_EQ(calls, 2);
}

TEST(BackwardOfATensor, AResultOf16BitsTakesAGradientOfItsType) {
  const Tensor x = leaf_from({1, 2}, {2});
  const Tensor half = cast(scale(x, 3), DType::kBFloat16);
  half.backward({.gradient = cast(Tensor::full({2}, 2), DType::kBFloat16)});
  EXPECT_EQ(elements_of(grad(x)), (std::vector<float>{6, 6}));
  EXPECT_NE(
      message_of([&] { cast(x, DType::kBFloat16).backward({.gradient = Tensor::full({2}, 2)}); }).find("got float32"),
      std::string::npos);
}

TEST(BackwardOfATensor, RefusesAGradientThatIsNotAsTheTensorAndKeepsTheTape) {
  const Tensor x = leaf_from({1, 2}, {2});
  const Tensor y = scale(x, 3);
  const auto message = [&](const Tensor& gradient) { return message_of([&] { y.backward({.gradient = gradient}); }); };
  EXPECT_EQ(message(Tensor::full({3}, 1)),
            "backward: the gradient must match the tensor to differentiate: expected float32 of shape (2) on cpu, got "
            "float32 "
            "of shape (3) on cpu");
  EXPECT_NE(message(Tensor::zeros({2}, DType::kInt64)).find("got int64 of shape (2)"), std::string::npos);
  EXPECT_NE(message(Tensor()).find("needs a float32 scalar, got float32 of shape (2)"), std::string::npos);
  EXPECT_EQ(message(Tensor::full({2}, 1)), "nothing was thrown");
  EXPECT_THROW(backward(Tensor()), InvalidArgument);
  EXPECT_THROW(Tensor::full({}, 1).backward({.gradient = Tensor::full({}, 1)}), InvalidArgument)
      << "requires no gradient";
}

// Every operator that keeps data between forward and backward.
Tensor net(const Tensor& x, const std::vector<Tensor>& weights) {
  Tensor y = conv2d(x, weights[0], weights[1], {.padding = Same{}, .activation = Activation::kReLU});
  y = local_response_norm(max_pool2d(y, {2, 2}), {});
  y = linear(flatten(y), weights[2], weights[3], Activation::kReLU);
  y = add(y, relu(bias_add(scale(y, 0.5f), weights[3])));
  return add(softmax_cross_entropy(y, Tensor::from<std::int64_t>(std::vector<std::int64_t>{1, 0}, {2})),
             l2_loss(weights[2]));
}

std::vector<Tensor> net_weights() {
  manual_seed(5);
  return {random_leaf({4, 3, 3, 2}), random_leaf({4}), random_leaf({3, 16}), random_leaf({3}, 0.1f, 1)};
}

TEST(RetainGraph, EachPassGivesTheSameBitsAndTheLastOneFrees) {
  const std::vector<Tensor> weights = net_weights();
  const Tensor x = random_leaf({2, 4, 4, 2});
  const auto gradients_now = [&] {
    std::vector<std::vector<float>> all = {elements_of(grad(x))};
    clear_grad(x);
    for (const Tensor& weight : weights) {
      all.push_back(elements_of(grad(weight)));
      clear_grad(weight);
    }
    return all;
  };
  net(x, weights).backward();
  const auto once = gradients_now();
  const std::size_t idle = cpu_device().allocator_stats().bytes_in_use;
  const Tensor loss = net(x, weights);
  const std::size_t recorded = cpu_device().allocator_stats().bytes_in_use;
  for (int pass = 0; pass < 3; ++pass) {
    loss.backward({.retain_graph = true});
    EXPECT_EQ(gradients_now(), once) << "pass " << pass;
    EXPECT_EQ(cpu_device().allocator_stats().bytes_in_use, recorded) << "pass " << pass;
  }
  loss.backward();
  EXPECT_EQ(gradients_now(), once);
  EXPECT_LE(cpu_device().allocator_stats().bytes_in_use, idle + 128) << "the loss itself is left";
  const std::string refused = message_of([&] { loss.backward(); });
  EXPECT_NE(
      refused.find("was freed by an earlier backward; compute the loss again, or keep the tape with .retain_graph"),
      std::string::npos);
}

TEST(RetainGraph, PassesAddUp) {
  const Tensor x = leaf_from({2}, {});
  const Tensor loss = add(scale(x, 3), relu(x));
  loss.backward({.retain_graph = true});
  loss.backward({.retain_graph = true});
  loss.backward({.gradient = Tensor::full({}, 10)});
  EXPECT_EQ(grad(x).item(), 4 + 4 + 40);
}

TEST(RetainGraph, HooksHearOfEveryPass) {
  const Tensor x = leaf_from({2}, {});
  const Tensor middle = scale(x, 3), loss = scale(middle, 1);
  std::vector<std::string> events;
  const HookHandle hook = register_grad_hook(x, [&](const Tensor&) { events.push_back("x"); });
  register_backward_end_hook(middle, [&] { events.push_back("end"); });
  loss.backward({.retain_graph = true});
  loss.backward();
  EXPECT_EQ(events, (std::vector<std::string>{"x", "end", "x", "end"}));
}

TEST(RetainGraph, TwoLossesOverOneBody) {
  const Tensor x = leaf_from({3}, {});
  const Tensor body = scale(x, 2);
  const Tensor first = scale(body, 5), second = scale(body, 7);
  first.backward({.retain_graph = true});
  second.backward();
  EXPECT_EQ(grad(x).item(), 24);
  EXPECT_THROW(first.backward(), InvalidArgument) << "second's pass has freed the body";
}

TEST(RetainGraph, ValuesThatChangedBetweenThePassesAreRefused) {
  const Tensor weight = random_leaf({2, 2});
  const Tensor loss = l2_loss(weight);
  loss.backward({.retain_graph = true});
  weight.fill(1);
  EXPECT_NE(message_of([&] { loss.backward(); }).find("was changed after l2_loss read it"), std::string::npos);
}

TEST(ResultGradHooks, SeeTheWholeGradientAndMayChangeIt) {
  const Tensor x = leaf_from({2}, {});
  const Tensor middle = scale(x, 3), loss = add(scale(middle, 2), scale(middle, 5));
  std::vector<float> seen;
  HookHandle first = register_result_grad_hook(middle, [&](const Tensor& gradient) {
    seen.push_back(gradient.item());
    gradient.fill(100);
  });
  const HookHandle second =
      register_result_grad_hook(middle, [&](const Tensor& gradient) { seen.push_back(gradient.item()); });
  loss.backward({.retain_graph = true});
  EXPECT_EQ(seen, (std::vector<float>{7, 100}));
  EXPECT_EQ(grad(x).item(), 300);
  first.remove();
  seen.clear();
  EXPECT_EQ(gradients(loss, {x})[0].item(), 21);
  EXPECT_EQ(seen, (std::vector<float>{7}));
  EXPECT_THROW((void)register_result_grad_hook(x, [](const Tensor&) {}), InvalidArgument) << "a leaf";
  EXPECT_THROW((void)register_result_grad_hook(middle, [](const Tensor&) {}), InvalidArgument) << "freed";
}

// relu masks the gradient of its result in place, and the other reader of `middle` adds to memory that reshape hands
// on.
TEST(ResultGradHooks, MayKeepTheGradient) {
  using Keep = std::function<Tensor(const Tensor&)>;
  const std::vector<std::pair<std::string, Keep>> ways = {
      {"the tensor", [](const Tensor& gradient) { return gradient; }},
      {"a view",
       [](const Tensor& gradient) {
         return gradient.reshaped({1, 2});
       }},
      {"detach()", [](const Tensor& gradient) { return detach(gradient); }}};
  for (const auto& [name, keep] : ways) {
    const Tensor x = leaf_from({-1, 2}, {2});
    const Tensor middle = scale(x, 3), other = scale(middle, 10), masked = relu(middle),
                 shaped = reshape(masked, {2, 1});
    Tensor of_masked, of_shaped, of_middle;
    const HookHandle hooks[] = {
        register_result_grad_hook(masked, [&, &keep = keep](const Tensor& g) { of_masked = keep(g); }),
        register_result_grad_hook(shaped, [&, &keep = keep](const Tensor& g) { of_shaped = keep(g); }),
        register_result_grad_hook(middle, [&, &keep = keep](const Tensor& g) { of_middle = keep(g); })};
    add(sum(shaped), sum(other)).backward();
    EXPECT_EQ(elements_of(of_shaped), (std::vector<float>{1, 1})) << name;
    EXPECT_EQ(elements_of(of_masked), (std::vector<float>{1, 1})) << name;
    EXPECT_EQ(elements_of(of_middle), (std::vector<float>{10, 11})) << name;
    EXPECT_EQ(elements_of(grad(x)), (std::vector<float>{30, 33})) << name;
  }
}

TEST(ResultGradHooks, WhatOneKeepsTheNextOnesChangeNoMore) {
  const Tensor x = leaf_from({2}, {});
  const Tensor middle = scale(x, 3);
  Tensor kept;
  const HookHandle first = register_result_grad_hook(middle, [&](const Tensor& gradient) {
    gradient.fill(4);  // also reaches x
    kept = gradient;
  });
  const HookHandle second = register_result_grad_hook(middle, [](const Tensor& gradient) { gradient.fill(5); });
  scale(middle, 7).backward();
  EXPECT_EQ(kept.item(), 4);
  EXPECT_EQ(grad(x).item(), 15);
}

}  // namespace
}  // namespace lockstep
