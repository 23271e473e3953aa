// Passes of TorchDdp that end early, or whose gradients come from several backwards.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "lockstep/core/error.h"
#include "tests/torch/torch_ranks.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

// Two losses, two backwards, no zero_grad() between them: what the second does not reach keeps its average, and where
// one rank reaches it, that rank's gradient is added.
TEST(TorchPasses, AddUpLossesThatReachOtherParameters) {
  for (const bool rank_0_uses_both : {false, true})
    expect_no_failures(run_torch_ranks(2, [&](auto group) {
      TwoHeads model, alone;
      auto ddp = torch_ddp(model, group, {.find_unused_parameters = true});
      squares(ddp(batch_of(*group, 0, {4, 6}), true, false)).backward();
      EXPECT_FALSE(model->right->weight.grad().defined());
      squares(ddp(batch_of(*group, 1, {4, 6}), rank_0_uses_both && group->rank() == 0, true)).backward();
      for (int rank = 0; rank < 2; ++rank) {
        const auto x_of = [&](int step) { return waves({4, 6}, 100.0 * rank + 3.0 * step); };
        (squares(alone(x_of(0), true, false)) / 2).backward();
        (squares(alone(x_of(1), rank_0_uses_both && rank == 0, true)) / 2).backward();
      }
      for (const auto& parameter : model->named_parameters())
        EXPECT_TRUE(
            torch::allclose(parameter.value().grad(), alone->named_parameters()[parameter.key()].grad(), 1e-5, 1e-6))
            << parameter.key();
      // Gradients that were filled with zeros and not reached are no gradients.
      model->zero_grad(/*set_to_none=*/false);
      squares(ddp(batch_of(*group, 2, {4, 6}), true, false)).backward();
      EXPECT_FALSE(model->right->weight.grad().defined());
      EXPECT_TRUE(model->left->weight.grad().defined());
    }));
}

// The exception comes when the pass has begun, and before any gradient is there. No forward follows it.
TEST(TorchPasses, AnExceptionEndsItsPassBeforeTheNextBackward) {
  expect_no_failures(run_torch_ranks(2, [](auto group) {
    TwoHeads model, plain;
    auto ddp = torch_ddp(model, group);
    auto reference = torch_ddp(plain, group);
    const torch::Tensor fails = ddp(batch_of(*group, 0, {4, 6})), works = ddp(batch_of(*group, 1, {4, 6}));
    fails.register_hook([](const torch::Tensor&) -> torch::Tensor { throw std::runtime_error("no more"); });
    EXPECT_THROW(squares(fails).backward(), std::exception);
    squares(works).backward();
    squares(reference(batch_of(*group, 1, {4, 6}))).backward();
    EXPECT_TRUE(torch::equal(model->trunk->weight.grad(), plain->trunk->weight.grad()));
  }));
}

TEST(TorchPasses, ARefusedWeightEndsItsPassAlone) {
  expect_no_failures(run_torch_ranks(2, [](auto group) {
    TwoHeads model;
    auto ddp = torch_ddp(model, group);
    ddp.set_weight(group->rank() == 0 ? 1 : -1);
    std::string text;
    try {
      squares(ddp(batch_of(*group, 0, {4, 6}))).backward();
    } catch (const std::exception& error) {
      text = error.what();
    }
    EXPECT_THAT(text, HasSubstr("rank 1 set the weight -1"));
    model->zero_grad();
    squares(model(batch_of(*group, 1, {4, 6}))).backward();  // the module itself: no forward of the wrapper
    expect_same_on_ranks(*group, model->trunk->weight.grad(), "gradient");
  }));
}

TEST(TorchPasses, NoSyncOutlivesItsWrapper) {
  expect_no_failures(run_torch_ranks(2, [](auto group) {
    TwoHeads model;
    std::optional<TorchDdp<TwoHeadsImpl>> first(torch_ddp(model, group));
    const auto local = first->no_sync();
    TorchDdp<TwoHeadsImpl> moved = std::move(*first);
    first.reset();
    squares(moved(batch_of(*group, 0, {4, 6}))).backward();
    EXPECT_GT(model->trunk->weight.grad().abs().sum().template item<double>(), 0);
  }));
}

}  // namespace
}  // namespace lockstep::testing
