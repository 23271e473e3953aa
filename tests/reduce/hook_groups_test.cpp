// A comm hook used with several groups, one after another or alternately: each group has its own memory for the
// messages.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

#include "lockstep/reduce/hooks.h"
#include "lockstep/reduce/reducer.h"
#include "src/comm/local/local_backend.h"
#include "src/comm/testing/recording_backend.h"

namespace lockstep {
namespace {

std::shared_ptr<ProcessGroup> recording_group() {
  return ProcessGroup::wrap({}, std::make_unique<RecordingBackend>(make_local_backend()));
}

// Runs two passes and returns the sizes in bytes that the group allocated.
std::vector<std::size_t> allocated_in(const std::shared_ptr<ProcessGroup>& group, const CommHook& hook) {
  Reducer reducer(group, {{.name = "w", .count = 64 * 64, .shape = {64, 64}}, {.name = "b", .count = 100}},
                  {.comm_hook = hook});
  reducer.finish();
  reducer.finish();
  return recorded(group->backend()).allocations();
}

TEST(HookGroups, AGroupAfterADestroyedOneGetsItsOwnMemory) {
  const std::vector<std::function<CommHook()>> makers = {
      [] { return hooks::bf16(); },
      [] { return hooks::fp16(); },
      [] { return hooks::int8(); },
      [] { return hooks::top_k(); },
      [] { return hooks::power_sgd({.start_step = 0}); },
      [] { return hooks::power_sgd({.start_step = 0, .next = hooks::bf16()}); }};
  for (const auto& make : makers) {
    const CommHook hook = make();
    const std::vector<std::size_t> first = allocated_in(recording_group(), hook);
    EXPECT_GE(first.size(), 2u) << "buckets, and messages of " << hook->describe();
    EXPECT_EQ(allocated_in(recording_group(), hook), first) << hook->describe();
  }
}

// Calls the hook directly, as a hook defined by the program may do.
TEST(HookGroups, AlternatingGroupsKeepTheirMemory) {
  for (const CommHook& hook : {hooks::bf16(), hooks::int8()}) {
    const auto one = recording_group(), other = recording_group();
    std::vector<float> values(1000, 1);
    const GradBucket bucket{.count = values.size(), .buffer = values.data(), .is_last = true};
    for (int pass = 0; pass < 3; ++pass) {
      hook(*one, bucket).wait();
      hook(*other, bucket).wait();
    }
    const auto &here = recorded(one->backend()), &there = recorded(other->backend());
    EXPECT_FALSE(here.allocations().empty());
    EXPECT_EQ(there.allocations(), here.allocations()) << hook->describe();
    const auto calls = here.calls(), others = there.calls();
    ASSERT_EQ(calls.size(), others.size());
    for (std::size_t i = 0; i < calls.size(); ++i) {
      EXPECT_NE(calls[i].operation.send, others[i].operation.send) << hook->describe();
      EXPECT_EQ(calls[i].operation.send, calls[i % (calls.size() / 3)].operation.send)
          << "the memory is kept between passes";
    }
  }
}

}  // namespace
}  // namespace lockstep
