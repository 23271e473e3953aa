// The state of comm hooks for a parameter that no rank used in a pass must not change.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/reduce/hooks.h"
#include "tests/ddp/ranks.h"
#include "tests/reduce/hook_gradients.h"

namespace lockstep {
namespace {

using testing::expect_all_well;
using testing::run_ranks;

class HookErrors : public ::testing::TestWithParam<Wire> {
 protected:
  void run(const std::function<void(std::shared_ptr<ProcessGroup>)>& body) const {
    expect_all_well(run_ranks(GetParam().ranks, GetParam().transport, body));
  }
};
INSTANTIATE_TEST_SUITE_P(Wires, HookErrors,
                         ::testing::Values(Wire{"threads", 2}, Wire{"threads", 4}, Wire{"tcp", 2}, Wire{"tcp", 4}),
                         [](const auto& test) { return test.param.transport + std::to_string(test.param.ranks); });

// Runs a pass without gradients 0 and 3: no rank has gradient 0, and only rank 0 has gradient 3.
void pass_without_some(Reducer& reducer, const ProcessGroup& group, int pass) {
  for (std::size_t g = gradients().size(); g-- > 0;) {
    if (g == 0 || (g == 3 && group.rank() != 0)) continue;
    for (std::size_t i = 0; i < gradients()[g].count; ++i)
      reinterpret_cast<float*>(reducer.slot(g).data())[i] = number(group.rank(), pass, g, i);
    reducer.mark_ready(g);
  }
  reducer.finish();
  reducer.undo(std::vector<std::size_t>{0});
}

const std::vector<std::function<CommHook()>>& hooks_with_state() {
  static const std::vector<std::function<CommHook()>> all = {
      [] { return hooks::top_k({.ratio = 0.1}); }, [] { return hooks::power_sgd({.start_step = 0}); },
      [] { return hooks::power_sgd({.start_step = 0, .error_feedback = false}); },
      [] { return hooks::power_sgd({.matrix_rank = 2, .start_step = 1, .next = hooks::bf16()}); },
      [] { return hooks::post_local_sgd({.start_step = 100, .next = hooks::top_k({.ratio = 0.1})}); }};
  return all;
}

TEST_P(HookErrors, KeepTheErrorOfAParameterThatNoRankUsed) {
  for (const auto& make : hooks_with_state())
    run([&](auto group) {
      const CommHook hook = make();
      Reducer reducer(group, gradients(), {.caps = kCaps, .comm_hook = hook});
      for (int pass = 0; pass < 3; ++pass) reduce(reducer, *group, pass);
      for (int pass = 3; pass < 5; ++pass) {
        const auto before = snapshot(hook);
        pass_without_some(reducer, *group, pass);
        const auto after = snapshot(hook);
        const auto states = hook->state();
        for (std::size_t s = 0; s < states.size(); ++s) {
          const bool is_unused = states[s].name.ends_with(".tall");
          if (is_unused) {
            EXPECT_EQ(after[s], before[s]) << hook->describe() << ": " << states[s].name;
          }
          if (states[s].name.ends_with(".wide")) {  // rank 0's error, to which the other ranks' errors are added
            EXPECT_NE(after[s], before[s]) << hook->describe() << ": " << states[s].name;
          }
        }
      }
      reduce(reducer, *group, 5);
    });
}

// Runs two trainings, one of which has additional passes without the parameter. Its sums must have the same bits as the
// other's.
TEST_P(HookErrors, IgnorePassesInWhichNoRankUsesTheParameter) {
  run([&](auto group) {
    Reducer plain(group, gradients(), {.caps = kCaps, .comm_hook = hooks::top_k({.ratio = 0.1})});
    Reducer with_gap(group, gradients(), {.caps = kCaps, .comm_hook = hooks::top_k({.ratio = 0.1})});
    for (int pass = 0; pass < 4; ++pass) {
      if (pass == 2) pass_without_some(with_gap, *group, 10);
      EXPECT_EQ(reduce(with_gap, *group, pass)[0], reduce(plain, *group, pass)[0]) << "pass " << pass;
    }
  });
}

TEST(HookErrorMemory, PassesWithoutAParameterAllocateNothingAfterTheSecond) {
  for (const auto& make : hooks_with_state())
    expect_all_well(run_ranks(2, "threads", [&](auto group) {
      const CommHook hook = make();
      Reducer reducer(group, gradients(), {.caps = kCaps, .comm_hook = hook});
      const std::size_t unused[] = {0};
      const auto pass = [&] {
        for (std::size_t g = 1; g < gradients().size(); ++g) reducer.mark_ready(g);
        reducer.finish();
        reducer.undo(unused);
      };
      for (int i = 0; i < 3; ++i) pass();
      const Allocated before = allocated(*group);
      const std::uint64_t blocks = cpu_device().allocator_stats().system_allocations;
      constexpr std::size_t kPasses = 20;
      for (std::size_t i = 0; i < kPasses; ++i) pass();
      EXPECT_EQ(allocated(*group), Allocated(before.first + kPasses, before.second))
          << hook->describe() << ": finish() returns a list";
      EXPECT_EQ(cpu_device().allocator_stats().system_allocations, blocks);
    }));
}

}  // namespace
}  // namespace lockstep
