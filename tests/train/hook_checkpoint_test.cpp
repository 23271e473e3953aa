// The state of comm hooks in checkpoints: the same bits on the same number of ranks, a mean on another number, and what
// is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/autograd/engine.h"
#include "lockstep/ddp/zero.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/loss.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/reduce/hooks.h"
#include "lockstep/tensor/random.h"
#include "lockstep/train/checkpoint.h"
#include "tests/ddp/ranks.h"
#include "tests/support/temporary.h"

namespace lockstep::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using MakeHook = std::function<CommHook()>;

struct TwoLayers : nn::Module {
  nn::Linear first{8, 12}, last{12, 4};
  TwoLayers() { add("first", first), add("last", last); }
  Tensor forward(const Tensor& x) override { return last(relu(first(x))); }
};

// A training that can stop and continue.
struct Training {
  Training(const std::shared_ptr<ProcessGroup>& group, const CommHook& hook)
      : group(group), ddp(net, group, {.comm_hook = hook}) {}

  void run(int first_step, int last_step) {
    for (int step = first_step; step < last_step; ++step) {
      Philox random(/*seed=*/5, static_cast<std::uint64_t>(step * 10 + group->rank()));
      const Tensor x = Tensor::empty({8, 8}), labels = Tensor::zeros({8}, DType::kInt64);
      for (float& value : x.span<float>()) value = random.uniform(-1.f, 1.f);
      for (std::size_t row = 0; row < 8; ++row) labels.span<std::int64_t>()[row] = x.span<float>()[row * 8] > 0 ? 1 : 0;
      const Tensor loss = nn::cross_entropy(ddp(x), labels);
      sgd.zero_grad();
      loss.backward();
      sgd.step();
    }
  }
  train::CheckpointParts parts() { return {.model = net, .optimizer = sgd, .ddp = ddp, .group = group}; }

  std::shared_ptr<ProcessGroup> group;
  TwoLayers net;
  DistributedDataParallel ddp;
  optim::SGD sgd{ddp.parameters(), {.lr = 0.2f, .momentum = 0.9f}};
};

class HookFolder {
 public:
  explicit HookFolder(const std::string& name) : path(temporary(name)) {}
  ~HookFolder() { std::filesystem::remove_all(path); }
  const std::string path;
};

TEST(HookCheckpoint, AResumedTrainingHasTheSameBits) {
  const std::vector<MakeHook> makers = {
      [] { return hooks::top_k({.ratio = 0.1}); },
      [] { return hooks::power_sgd({.matrix_rank = 2, .start_step = 2, .next = hooks::bf16()}); },
      [] { return hooks::post_local_sgd({.start_step = 100, .next = hooks::top_k({.ratio = 0.2})}); }};
  for (const MakeHook& make : makers)
    for (const int ranks : {1, 2, 4}) {
      const HookFolder folder("hook_state");
      expect_all_well(run_ranks(ranks, "threads", [&](auto group) {
        Training whole(group, make()), resumed(group, make());
        whole.run(0, 5);
        train::save_checkpoint(folder.path, whole.parts());
        group->barrier();
        whole.run(5, 9);
        EXPECT_TRUE(train::load_checkpoint(folder.path, resumed.parts()).has_value());
        resumed.run(5, 9);
        EXPECT_EQ(hash_of(resumed.net.state_dict()), hash_of(whole.net.state_dict()))
            << make()->describe() << ", " << ranks << " ranks";
      }));
    }
}

// One checkpoint has the hook's state and the optimizer's slices.
TEST(HookCheckpoint, AResumedTrainingWithZeroHasTheSameBits) {
  for (const int ranks : {2, 3}) {
    const HookFolder folder("hook_zero");
    expect_all_well(run_ranks(ranks, "threads", [&](auto group) {
      const auto make = [] { return hooks::top_k({.ratio = 0.1}); };
      Training plain(group, make()), whole(group, make()), resumed(group, make());
      const ZeroRedundancyOptimizer of_whole(whole.ddp, whole.sgd), of_resumed(resumed.ddp, resumed.sgd);
      whole.run(0, 5);
      train::save_checkpoint(folder.path, whole.parts());
      whole.run(5, 9);
      for (Training* const training : {&resumed, &plain}) {
        EXPECT_TRUE(train::load_checkpoint(folder.path, training->parts()).has_value());
        training->run(5, 9);
        EXPECT_EQ(hash_of(training->net.state_dict()), hash_of(whole.net.state_dict())) << ranks << " ranks";
      }
    }));
  }
}

float* find(const CommHook& hook, const std::string& name) {
  for (const HookState& state : hook->state())
    if (state.name == name) return static_cast<float*>(state.data);
  ADD_FAILURE() << name;
  return nullptr;
}

TEST(HookCheckpoint, AnotherNumberOfRanksGetsTheMeanOfErrors) {
  const HookFolder folder("hook_mean");
  const char* const name = "top_k.error.last.weight";
  expect_all_well(run_ranks(2, "threads", [&](auto group) {
    const CommHook hook = hooks::top_k();
    Training training(group, hook);
    find(hook, name)[3] = group->rank() == 0 ? 1.0f : 4.0f;
    train::save_checkpoint(folder.path, training.parts());
  }));
  for (const int ranks : {1, 4})
    expect_all_well(run_ranks(ranks, "threads", [&](auto group) {
      const CommHook hook = hooks::top_k();
      Training training(group, hook);
      train::load_checkpoint(folder.path, training.parts());
      EXPECT_EQ(find(hook, name)[3], 2.5f);
    }));
}

TEST(HookCheckpoint, TheStateOfAnotherHookIsRefusedOnAllRanks) {
  const HookFolder folder("hook_other"), plain("hook_none");
  expect_all_well(run_ranks(2, "threads", [&](auto group) {
    Training with(group, hooks::top_k()), without(group, hooks::bf16());
    train::save_checkpoint(folder.path, with.parts());
    train::save_checkpoint(plain.path, without.parts());
  }));
  const auto loading = [](const std::string& path, const CommHook& none, const MakeHook& make, bool names_wrapper) {
    return run_ranks(2, "threads", [&](auto group) {
      Training training(group, make ? make() : none);
      train::CheckpointParts parts = training.parts();
      if (!names_wrapper) parts.ddp = {};
      train::load_checkpoint(path, parts);
    });
  };
  EXPECT_THAT(loading(folder.path, {}, {}, true), Each(HasSubstr("is of a comm hook that keeps 'top_k.error.")));
  EXPECT_THAT(loading(
                  folder.path, {}, [] { return hooks::power_sgd(); }, true),
              Each(HasSubstr("is of a comm hook that keeps 'top_k.error.")));
  EXPECT_THAT(loading(
                  plain.path, {}, [] { return hooks::power_sgd(); }, true),
              Each(HasSubstr("has no 'power_sgd.step'")));
  expect_all_well(loading(folder.path, {}, {}, false));
  expect_all_well(loading(plain.path, {}, {}, true));
}

}  // namespace
}  // namespace lockstep::testing
