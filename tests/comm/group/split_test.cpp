// Subgroups of ranks that are threads of this process.
#include <gtest/gtest.h>

#include <functional>
#include <thread>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/core/error.h"
#include "src/comm/local/local_backend.h"
#include "src/comm/store/memory_store.h"
#include "tests/comm/thread_ranks.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

class Split : public ::testing::TestWithParam<const char*> {};

TEST_P(Split, ColorsAreApartAndKeysGiveTheOrder) {
  run_ranks(5, GetParam(), [](ProcessGroup& all) {
    const int color = all.rank() % 2;
    const auto half = all.split(color, -all.rank());  // the highest rank comes first
    const std::vector<int> members = color == 0 ? std::vector<int>{4, 2, 0} : std::vector<int>{3, 1};
    ASSERT_EQ(half->world_size(), static_cast<int>(members.size()));
    EXPECT_EQ(members[static_cast<std::size_t>(half->rank())], all.rank());
    std::vector<std::int32_t> seen(members.size());
    const std::int32_t mine = all.rank();
    half->all_gather(&mine, seen.data(), 1, DType::kInt32);
    EXPECT_EQ(seen, members);
    for (int round = 0; round < 20; ++round) {  // both groups alternately; the halves are independent of each other
      std::vector<float> values(3000, static_cast<float>(all.rank())), totals(3000, 1.f);
      const Work work = half->all_reduce_async(values.data(), values.size(), DType::kFloat32);
      if (round % 5 == 0) all.all_reduce(totals.data(), 1, DType::kFloat32, ReduceOp::kMax);
      work.wait();
      EXPECT_EQ(values[2999], color == 0 ? 6.f : 4.f);
    }
    const Buffer memory = half->allocate(100000);  // collective in the half only
    half->broadcast(memory.data(), 100000, DType::kUInt8, 0);
  });
}

TEST_P(Split, EqualKeysKeepTheOrderAndNegativeColorsStayOut) {
  run_ranks(4, GetParam(), [](ProcessGroup& all) {
    const auto most = all.split(all.rank() == 1 ? -1 : 7);
    ASSERT_EQ(most == nullptr, all.rank() == 1);
    if (most) {
      EXPECT_EQ(most->world_size(), 3);
      EXPECT_EQ(most->rank(), all.rank() == 0 ? 0 : all.rank() - 1);
      const auto alone = most->split(most->rank());  // a subgroup of a subgroup
      std::int64_t number = 5;
      alone->all_reduce(std::span(&number, 1));
      EXPECT_EQ(number, 5);
    }
    all.barrier();
  });
}

TEST_P(Split, GroupsMayEndInAnyOrder) {
  run_ranks(3, GetParam(), [](ProcessGroup& all) {
    std::shared_ptr<ProcessGroup> later;
    {
      const auto sooner = all.split(0);
      later = sooner->split(0, all.rank());
      sooner->barrier();
    }
    later->barrier();
    all.barrier();
  });
}

TEST_P(Split, OptionsThatAreGivenReplaceTheGroups) {
  run_ranks(2, GetParam(), [](ProcessGroup& all) {
    const auto hasty = all.split(0, all.rank(), {.backend = "host", .timeout = 17s, .device = &cpu_device()});
    EXPECT_EQ(hasty->timeout(), 17s);
    EXPECT_EQ(all.split(0)->timeout(), all.timeout());
    hasty->barrier();
    all.barrier();
  });
}

TEST_P(Split, WorkBesideEndsBeforeTheGroupDoes) {
  run_ranks(2, GetParam(), [](ProcessGroup& all) {
    for (const bool leaves : {false, true}) {
      auto beside = all.split(0), group = all.split(0);
      int ends = 0;
      group->before_leaving([&] {
        beside->barrier();  // all ranks still answer
        ++ends;
      });
      if (leaves) group->leave();
      EXPECT_EQ(ends, leaves ? 1 : 0);
      group.reset();
      EXPECT_EQ(ends, 1);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ring, Split, ::testing::Values("shm", "tcp"),
                         [](const auto& tested) { return std::string(tested.param); });

TEST(SplitAlone, AGroupWithoutAStoreSaysSo) {
  const auto group = ProcessGroup::wrap({}, make_local_backend());
  EXPECT_THROW(group->split(0), InvalidArgument);
}

}  // namespace
}  // namespace lockstep
