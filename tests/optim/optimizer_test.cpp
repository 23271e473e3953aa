// Common parts of all optimizers: groups, rates, state by name, counted and skipped steps.
#include "lockstep/optim/optimizer.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <memory>
#include <string>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/error.h"
#include "lockstep/optim/adam.h"
#include "lockstep/optim/nadam.h"
#include "lockstep/optim/rmsprop.h"
#include "lockstep/optim/sgd.h"
#include "tests/optim/every_optimizer.h"
#include "tests/optim/trainee.h"
#include "tests/support/heap_count.h"

namespace lockstep::optim {
namespace {

using test_support::heap_allocations_by_thread;

// Returns the step count of each parameter of the group.
std::vector<double> steps_of(Optimizer& optimizer, const std::string& clock) {
  std::vector<double> steps;
  for (const auto& [name, tensor] : optimizer.state())
    if (name == clock)
      for (std::size_t i = 0; i < tensor.span<double>().size(); i += 4) steps.push_back(tensor.span<double>()[i]);
  return steps;
}

TEST(Optimizer, StateIsNamedAfterParametersAndGroups) {
  using Names = std::vector<std::string>;
  const Tensor w = parameter_of({1}), b = parameter_of({1});
  LossScaler scaler;
  Adam adam({{"w", w}}, {.loss_scaler = &scaler});
  adam.add_group({.parameters = {{"b", b}}});
  EXPECT_EQ(state_names(adam), (Names{"w.exp_avg", "w.exp_avg_sq", "b.exp_avg", "b.exp_avg_sq", "group0.clock",
                                      "group1.clock", "loss_scaler.state"}));
  EXPECT_EQ(adam.kind(), "Adam");
  EXPECT_EQ(AdamW({{"w", w}}).kind(), "AdamW");
}

TEST(Optimizer, GroupsHaveTheirOwnRateAndDecay) {
  const Tensor w = parameter_of({1}), b = parameter_of({1});
  SGD sgd({{"w", w}}, {.lr = 0.5F, .weight_decay = 0.5F});
  sgd.add_group({.parameters = {{"b", b}}, .lr_factor = 0.5F, .weight_decay = 0});
  ASSERT_EQ(sgd.groups(), 2U);
  EXPECT_EQ(sgd.parameters().size(), 2U);
  EXPECT_EQ(sgd.group_lr(1), 0.25F);
  const auto step = [&] {
    give_gradient(w, {0.5F}), give_gradient(b, {0.5F});
    sgd.step();
  };
  step();
  EXPECT_EQ(w.item(), 1 - 0.5F * (0.5F + 0.5F));
  EXPECT_EQ(b.item(), 1 - 0.25F * 0.5F);
  sgd.set_lr(0.25F);  // applies to both groups, times their factors
  EXPECT_EQ(sgd.group_lr(1), 0.125F);
  sgd.set_lr_factor(0, 0);
  step();
  EXPECT_EQ(w.item(), 0.5F) << "a rate of 0";
  EXPECT_EQ(b.item(), 0.875F - 0.125F * 0.5F);
  EXPECT_EQ(sgd.lr(), 0.25F);
}

TEST(Optimizer, GroupsAreUpdatedAsTheyWouldBeAlone) {
  const std::size_t count = 11;
  const Tensor w = parameter_of(weights_at_first(count)), b = parameter_of(weights_at_first(count)),
               one = parameter_of(weights_at_first(count)), other = parameter_of(weights_at_first(count));
  AdamW together({{"w", w}}, {.lr = 0.01F});
  together.add_group({.parameters = {{"b", b}}, .lr_factor = 2, .weight_decay = 0.3F});
  AdamW first({{"w", one}}, {.lr = 0.01F}), second({{"b", other}}, {.lr = 0.02F, .weight_decay = 0.3F});
  for (int step = 1; step <= 5; ++step) {
    for (const Tensor& each : {w, one}) give_gradient(each, gradient_of_step(step, count));
    for (const Tensor& each : {b, other}) give_gradient(each, gradient_of_step(step + 7, count));
    together.step(), first.step(), second.step();
  }
  EXPECT_EQ(values_of(w), values_of(one));
  EXPECT_EQ(values_of(b), values_of(other));
}

TEST(Optimizer, AStepThatLossScalingSkipsDoesNotCount) {
  const std::size_t count = 5;
  const Tensor plain = parameter_of(weights_at_first(count)), scaled = parameter_of(weights_at_first(count));
  LossScaler scaler({.initial = 1024});
  Adam one({{"w", plain}}, {.lr = 0.01F}), other({{"w", scaled}}, {.lr = 0.01F, .loss_scaler = &scaler});
  for (int step = 1; step <= 6; ++step) {
    std::vector<float> gradient = gradient_of_step(step, count);
    give_gradient(plain, gradient);
    for (float& value : gradient) value *= scaler.value();
    if (step == 3) {
      gradient[2] = std::numeric_limits<float>::infinity();
      const std::vector<float> before = values_of(scaled);
      give_gradient(scaled, gradient);
      other.step();
      EXPECT_EQ(values_of(scaled), before);
      continue;
    }
    give_gradient(scaled, gradient);
    one.step(), other.step();
  }
  EXPECT_EQ(steps_of(other, "group0.clock"), (std::vector<double>{5}));
  EXPECT_EQ(scaler.skipped_steps(), 1);
  EXPECT_EQ(values_of(scaled), values_of(plain)) << "scales are powers of two, so the bits are the same";
}

TEST(Optimizer, ABadGradientOfOneGroupSkipsAll) {
  const Tensor w = parameter_of({1}), b = parameter_of({1});
  LossScaler scaler({.initial = 2});
  SGD sgd({{"w", w}}, {.lr = 1, .loss_scaler = &scaler});
  sgd.add_group({.parameters = {{"b", b}}});
  give_gradient(w, {2}), give_gradient(b, {std::numeric_limits<float>::quiet_NaN()});
  sgd.step();
  EXPECT_EQ(w.item(), 1);
  EXPECT_EQ(b.item(), 1);
  EXPECT_EQ(scaler.value(), 1);
}

TEST(Optimizer, CountsAGroupsStepsWhereItHasGradients) {
  const Tensor w = parameter_of({1}), b = parameter_of({1});
  Adam adam({{"w", w}});
  adam.add_group({.parameters = {{"b", b}}});
  for (int step = 0; step < 3; ++step) {
    adam.zero_grad();
    give_gradient(w, {1});
    if (step == 1) give_gradient(b, {1});
    adam.step();
  }
  EXPECT_EQ(steps_of(adam, "group0.clock"), (std::vector<double>{3}));
  EXPECT_EQ(steps_of(adam, "group1.clock"), (std::vector<double>{1}));
}

// As in PyTorch, a parameter's step count is the number of steps in which it had a gradient, so it is updated as if it
// were alone.
TEST(Optimizer, CountsStepsByParameter) {
  const std::size_t count = 7;
  for (const OptimizerCase& each : every_optimizer()) {
    if (!counts_steps(each)) continue;
    const auto make = [&](const std::vector<NamedTensor>& parameters) { return each.make(parameters, nullptr); };
    const Tensor always = parameter_of(weights_at_first(count)), late = parameter_of(weights_at_first(count)),
                 at_times = parameter_of(weights_at_first(count)), never = parameter_of(weights_at_first(count));
    const Tensor alone[] = {parameter_of(weights_at_first(count)), parameter_of(weights_at_first(count)),
                            parameter_of(weights_at_first(count))};
    const auto together = make({{"always", always}, {"late", late}, {"at_times", at_times}, {"never", never}});
    const std::unique_ptr<Optimizer> apart[] = {make({{"always", alone[0]}}), make({{"late", alone[1]}}),
                                                make({{"at_times", alone[2]}})};
    SCOPED_TRACE(together->kind());
    for (int step = 1; step <= 60; ++step) {
      together->zero_grad();
      const bool has_gradient[] = {true, step > 50, step % 3 == 0};
      const Tensor* const shared[] = {&always, &late, &at_times};
      for (std::size_t i = 0; i < 3; ++i) {
        if (!has_gradient[i]) continue;
        give_gradient(*shared[i], gradient_of_step(step, count));
        give_gradient(alone[i], gradient_of_step(step, count));
        apart[i]->step();
      }
      together->step();
    }
    EXPECT_EQ(values_of(always), values_of(alone[0]));
    EXPECT_EQ(values_of(late), values_of(alone[1]));
    EXPECT_EQ(values_of(at_times), values_of(alone[2]));
    EXPECT_EQ(values_of(never), weights_at_first(count));
    EXPECT_EQ(steps_of(*together, "group0.clock"), (std::vector<double>{60, 10, 20, 0}));
  }
}

// PyTorch's Adam(lr=0.001): a gradient of 0.5 moves a weight by 0.001 in the weight's first steps, however late these
// are in the training.
TEST(Optimizer, AdamCountsTheFirstStepOfAParameterHoweverLate) {
  const Tensor a = parameter_of({0}), b = parameter_of({0});
  Adam adam({{"a", a}, {"b", b}}, {.lr = 0.001F});
  for (int step = 0; step < 1003; ++step) {
    adam.zero_grad();
    give_gradient(a, {0.5F});
    if (step >= 1000) give_gradient(b, {0.5F});
    const float before = b.item();
    adam.step();
    EXPECT_NEAR(b.item() - before, step >= 1000 ? -0.001F : 0.0F, 1e-8F) << "step " << step;
  }
}

TEST(Optimizer, ContinuesFromItsStateBitForBit) {
  const std::size_t count = 9;
  const auto make = [](const Tensor& weight) {
    return std::make_unique<Nadam>(std::vector<NamedTensor>{{"w", weight}});
  };
  const Tensor whole = parameter_of(weights_at_first(count)), before = parameter_of(weights_at_first(count)),
               after = parameter_of(weights_at_first(count));
  const auto uninterrupted = make(whole), first = make(before), second = make(after);
  const auto run = [&](Optimizer& optimizer, const Tensor& weight, int begin, int end) {
    for (int step = begin; step < end; ++step) {
      give_gradient(weight, gradient_of_step(step, count));
      optimizer.step();
    }
  };
  run(*uninterrupted, whole, 1, 9);
  run(*first, before, 1, 5);
  after.copy_from(before);
  const auto saved = first->state(), loaded = second->state();
  ASSERT_EQ(saved.size(), loaded.size());
  for (std::size_t i = 0; i < saved.size(); ++i) loaded[i].tensor.copy_from(saved[i].tensor);  // as a checkpoint does
  run(*second, after, 5, 9);
  EXPECT_EQ(values_of(after), values_of(whole));
}

TEST(Optimizer, AStepOfAnyAllocatesNothingAfterTheFirst) {
  const Tensor w = parameter_of(std::vector<float>(1000, 1)), b = parameter_of({1, 2});
  LossScaler scaler;
  AdamW adamw({{"w", w}}, {.loss_scaler = &scaler});
  adamw.add_group({.parameters = {{"b", b}}, .weight_decay = 0});
  give_gradient(w, std::vector<float>(1000, 1)), give_gradient(b, {1, 1});
  adamw.step();
  const AllocatorStats device_before = cpu_device().allocator_stats();
  const std::size_t heap_before = heap_allocations_by_thread();
  adamw.step();
  EXPECT_EQ(heap_allocations_by_thread(), heap_before);
  EXPECT_EQ(cpu_device().allocator_stats().cache_hits, device_before.cache_hits);
}

TEST(Optimizer, RefusesInvalidArguments) {
  const Tensor w = parameter_of({1}), b = parameter_of({1});
  const std::vector<NamedTensor> all = {{"w", w}};
  for (const auto& make : refused_options()) EXPECT_THROW(make(all), InvalidArgument);
  SGD sgd(all);
  EXPECT_THROW(sgd.add_group({.parameters = {{"again", w}}}), InvalidArgument);
  EXPECT_THROW(sgd.add_group({.parameters = {{"frozen", Tensor::zeros({1})}}}), InvalidArgument);
  EXPECT_THROW(sgd.add_group({.parameters = {{"b", b}}, .lr_factor = -1}), InvalidArgument);
  EXPECT_THROW(sgd.set_lr_factor(1, 1), InvalidArgument);
  EXPECT_EQ(sgd.groups(), 1U) << "a failed call changes nothing";
}

}  // namespace
}  // namespace lockstep::optim
