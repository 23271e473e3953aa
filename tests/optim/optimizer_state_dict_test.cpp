// state_dict() and load_state_dict(): a training goes on in another optimizer with the same bits, as in PyTorch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "lockstep/optim/adam.h"
#include "lockstep/optim/sgd.h"
#include "tests/optim/every_optimizer.h"
#include "tests/optim/trainee.h"
#include "tests/support/message_of.h"

namespace lockstep::optim {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Training {
  Tensor weights = parameter_of(weights_at_first(7));
  std::unique_ptr<Optimizer> optimizer;
  int steps = 0;

  void step(int count) {
    for (int i = 0; i < count; ++i) {
      optimizer->zero_grad();
      give_gradient(weights, gradient_of_step(++steps, 7));
      optimizer->step();
    }
  }
};

Training training_with(float lr) {
  Training made;
  made.optimizer = std::make_unique<Adam>(std::vector<NamedTensor>{{"w", made.weights}}, AdamOptions{.lr = lr});
  return made;
}

TEST(OptimizerStateDict, AnotherOptimizerGoesOnWithTheSameBits) {
  Training first = training_with(0.1F);
  first.step(3);
  first.optimizer->set_lr(0.05F);
  const std::vector<NamedTensor> saved = first.optimizer->state_dict();
  const std::vector<float> at_save = values_of(first.weights);
  first.step(2);  // changes no copy

  Training second = training_with(0.7F);
  second.weights.copy_from(Tensor::from<float>(at_save, {7}));
  second.optimizer->load_state_dict(saved);
  second.steps = 3;
  EXPECT_EQ(second.optimizer->lr(), 0.05F);
  second.step(2);
  EXPECT_EQ(values_of(second.weights), values_of(first.weights));

  Training fresh = training_with(0.05F);
  fresh.weights.copy_from(Tensor::from<float>(at_save, {7}));
  fresh.steps = 3;
  fresh.step(2);
  EXPECT_NE(values_of(fresh.weights), values_of(first.weights)) << "the state counts";
}

TEST(OptimizerStateDict, HasTheGroupsSettings) {
  const auto make = [](const Tensor& a, const Tensor& b, float factor) {
    auto sgd = std::make_unique<SGD>(std::vector<NamedTensor>{{"a", a}}, SGDOptions{.lr = 0.1F, .momentum = 0.9F});
    sgd->add_group({.parameters = {{"b", b}}, .lr_factor = factor, .weight_decay = 0.5F * factor});
    return sgd;
  };
  const Tensor a = parameter_of({1, 2}), b = parameter_of({3});
  const auto one = make(a, b, 0.25F), other = make(a, b, 1);
  other->load_state_dict(one->state_dict());
  EXPECT_FLOAT_EQ(other->group_lr(1), 0.025F);
  const auto decay = other->state_dict();
  EXPECT_EQ(decay.back().name, "group1.weight_decay");
  EXPECT_EQ(decay.back().tensor.item(), 0.125F);
}

TEST(OptimizerStateDict, DifferencesAreNamedAndNothingChanges) {
  Training first = training_with(0.1F), second = training_with(0.7F);
  first.step(2);
  second.step(1);
  std::vector<NamedTensor> saved = first.optimizer->state_dict();
  const std::vector<float> before = values_of(second.optimizer->state().front().tensor);
  saved[0].name = "module." + saved[0].name;
  saved[1].tensor = Tensor::zeros({3});
  EXPECT_THAT(
      message_of([&] { second.optimizer->load_state_dict(saved); }),
      AllOf(HasSubstr("Adam::load_state_dict: the state dict does not fit this optimizer, which was not changed"),
            HasSubstr("missing from the state dict: 'w."), HasSubstr("unexpected in the state dict: 'module.w."),
            HasSubstr("is float32 (7) here, float32 (3) in the state dict")));
  EXPECT_EQ(values_of(second.optimizer->state().front().tensor), before);
  EXPECT_EQ(second.optimizer->lr(), 0.7F);

  const Tensor weights = parameter_of(weights_at_first(7));
  SGD sgd({{"w", weights}}, {.lr = 0.1F, .momentum = 0.9F});
  EXPECT_THAT(message_of([&] { sgd.load_state_dict(first.optimizer->state_dict()); }),
              AllOf(HasSubstr("SGD::load_state_dict"), HasSubstr("missing"), HasSubstr("unexpected")));
  saved = first.optimizer->state_dict();
  for (NamedTensor& entry : saved)
    if (entry.name == "lr") entry.tensor = Tensor::full({1}, -1);
  EXPECT_THAT(message_of([&] { second.optimizer->load_state_dict(saved); }), HasSubstr("has lr -1"));
}

}  // namespace
}  // namespace lockstep::optim
