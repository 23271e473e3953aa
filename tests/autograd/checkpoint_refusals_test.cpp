// Activation checkpoints of functions that cannot be differentiated: the errors, and when they are thrown.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "lockstep/autograd/activation_checkpoint.h"
#include "tests/autograd/gradient_check.h"
#include "tests/support/message_of.h"

namespace lockstep {
namespace {

TEST(CheckpointRefusals, FunctionsThatReturnNothing) {
  const Tensor x = scalar_leaf(1);
  EXPECT_THROW(checkpoint(std::function<Tensor(const Tensor&)>(), x), InvalidArgument);
  EXPECT_THROW(checkpoint(std::function<Tensor(const std::vector<Tensor>&)>(), {x}), InvalidArgument);
  EXPECT_EQ(message_of([&] { checkpoint([](const Tensor&) { return Tensor(); }, x); }),
            "checkpoint: the function returned an undefined tensor");
}

TEST(CheckpointRefusals, ValuesThatChangeBetweenTheRuns) {
  const Tensor x = scalar_leaf(1), inner = scalar_leaf(5);
  const auto block = [&](const Tensor& input) { return add(input, inner); };
  const Tensor of_input = checkpoint(block, x), of_parameter = checkpoint(block, x);
  x.fill(2);
  EXPECT_NE(message_of([&] { of_input.backward(); }).find("a tensor of shape () was changed after checkpoint read it"),
            std::string::npos);
  const Tensor again = checkpoint(block, x);
  set_name(inner, "w");
  inner.fill(3);
  EXPECT_NE(
      message_of([&] { again.backward(); }).find("parameter 'w' of shape () was changed after checkpoint read it"),
      std::string::npos);
  const auto changes_input = [&](const Tensor& input) {
    input.fill(7);
    return scale(input, 1);
  };
  EXPECT_NE(message_of([&] { checkpoint(changes_input, x); }).find("changed one of its inputs in place"),
            std::string::npos);
}

TEST(CheckpointRefusals, FunctionsThatDoSomethingElseInBackward) {
  const Tensor x = scalar_leaf(1), first = scalar_leaf(5), second = scalar_leaf(6);
  int runs = 0;
  const auto message = [&](const std::function<Tensor(const Tensor&)>& function) {
    runs = 0;
    const Tensor loss = checkpoint(function, x);
    return message_of([&] { loss.backward(); });
  };
  const std::string unknown = message([&](const Tensor& input) { return add(input, runs++ == 0 ? x : first); });
  EXPECT_NE(unknown.find("checkpoint: add read a tensor of shape () when backward ran the function again"),
            std::string::npos)
      << unknown;
  const std::string missing = message([&](const Tensor& input) { return runs++ == 0 ? add(input, second) : input; });
  EXPECT_NE(missing.find("the gradient of a tensor of shape () depended on the function in its first run"),
            std::string::npos)
      << missing;
  const std::string shape = message([&](const Tensor& input) { return runs++ == 0 ? input : reshape(input, {1, 1}); });
  EXPECT_NE(shape.find("returned float32 of shape () in its first run, but float32 of shape (1, 1)"), std::string::npos)
      << shape;
  EXPECT_NE(message([&](const Tensor& input) { return runs++ == 0 ? input : Tensor(); }).find("an undefined tensor"),
            std::string::npos);
  EXPECT_FALSE(has_grad(second)) << "nothing was written";
}

TEST(CheckpointRefusals, WhatAFunctionPutsAsideHasNoTape) {
  const Tensor x = scalar_leaf(1);
  Tensor aside;
  const Tensor y = checkpoint(
      [&](const Tensor& input) {
        aside = scale(input, 2);
        return scale(aside, 3);
      },
      x);
  EXPECT_NE(message_of([&] {
              scale(aside, 1).backward();
            }).find("Tensors that a checkpointed function stores elsewhere have no tape"),
            std::string::npos);
  y.backward();
  EXPECT_EQ(grad(x).item(), 6);
}

}  // namespace
}  // namespace lockstep
