// The calls of a process group that are more than one operation of a backend, and calls from several threads. Ranks are
// threads.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <atomic>
#include <cmath>
#include <numeric>

#include "lockstep/comm/objects.h"
#include "tests/comm/thread_ranks.h"
#include "tests/support/message_of.h"

namespace lockstep {
namespace {

class GroupCalls : public ::testing::TestWithParam<const char*> {};

TEST_P(GroupCalls, PartsOfUnequalLength) {
  run_ranks(3, GetParam(), [](ProcessGroup& group) {
    const std::vector<std::size_t> counts = {2, 0, 3};
    const auto me = static_cast<std::size_t>(group.rank());
    const std::vector<std::int64_t> mine(counts[me], group.rank());
    std::vector<std::int64_t> all(5, -1);
    group.all_gather(mine.data(), all.data(), counts, DType::kInt64);
    EXPECT_EQ(all, (std::vector<std::int64_t>{0, 0, 2, 2, 2}));
    // Rank r sends r + 1 of its numbers to each rank.
    const std::vector<std::size_t> sends(3, me + 1), receives = {1, 2, 3};
    const std::vector<std::int64_t> out((me + 1) * 3, group.rank());
    std::vector<std::int64_t> in(6, -1);
    group.all_to_all_async(out.data(), sends, in.data(), receives, DType::kInt64).wait();
    EXPECT_EQ(in, (std::vector<std::int64_t>{0, 1, 1, 2, 2, 2}));
  });
}

TEST_P(GroupCalls, SeveralBuffersInOneCall) {
  run_ranks(3, GetParam(), [](ProcessGroup& group) {
    float a[3] = {1, 2, 3}, b = 4;
    std::vector<float> large(50000, static_cast<float>(group.rank()));
    const Region regions[] = {{a, 3}, {large.data(), large.size()}, {&b, 1}};
    group.all_reduce_coalesced(regions, DType::kFloat32);
    EXPECT_EQ(a[2], 9);
    EXPECT_EQ(large[49999], 3);
    EXPECT_EQ(b, 12);
    b = static_cast<float>(group.rank());
    group.broadcast_coalesced_async(regions, DType::kFloat32, 1).wait();
    EXPECT_EQ(b, 1);
    float half = 3;
    group.all_reduce(&half, 1, DType::kFloat32, ReduceOp::kPremulSum, {.factor = group.rank() == 0 ? 0.5 : 2});
    EXPECT_EQ(half, 13.5f);
    const Region one[] = {{&half, 1}};
    group.all_reduce_coalesced(one, DType::kFloat32, ReduceOp::kPremulSum, {.factor = 2});
    EXPECT_EQ(half, 81);
  });
}

TEST_P(GroupCalls, MessagesWithTagsAndFromAnyRank) {
  run_ranks(3, GetParam(), [](ProcessGroup& group) {
    const std::int32_t number = group.rank() * 10;
    if (group.rank() != 0) {
      group.send(&number, 1, DType::kInt32, 0, 4);
      return;
    }
    std::int32_t first = -1, second = -1;
    const int a = group.recv(&first, 1, DType::kInt32, kAnyRank, 4),
              b = group.recv(&second, 1, DType::kInt32, kAnyRank, 4);
    EXPECT_EQ(a + b, 3);
    EXPECT_EQ(first, a * 10);
    EXPECT_EQ(second, b * 10);
  });
}

TEST_P(GroupCalls, ObjectsArriveToTheBit) {
  run_ranks(3, GetParam(), [](ProcessGroup& group) {
    nlohmann::json object = {
        {"rank", group.rank()}, {"name", "größer"}, {"list", {1, -2.5, 1e-310}}, {"large", std::uint64_t(-1)}};
    object["nan"] = std::nan("");
    const auto from_one = broadcast_object(group, object, 1);
    EXPECT_EQ(from_one["rank"], 1);
    EXPECT_EQ(from_one["list"][2].get<double>(), 1e-310);
    EXPECT_EQ(from_one["large"].get<std::uint64_t>(), std::uint64_t(-1));
    EXPECT_TRUE(std::isnan(from_one["nan"].get<double>()));
    const auto all =
        all_gather_object(group, nlohmann::json::array({group.rank(), std::string(group.rank() * 3000, 'x')}));
    ASSERT_EQ(all.size(), 3u);
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(all[static_cast<std::size_t>(rank)][0], rank);
      EXPECT_EQ(all[static_cast<std::size_t>(rank)][1].get<std::string>().size(),
                static_cast<std::size_t>(rank) * 3000);
    }
    EXPECT_EQ(broadcast_object(group, nullptr, 0), nlohmann::json(nullptr));
  });
}

TEST_P(GroupCalls, MisuseIsTheSameErrorOnAllRanksAndHarmsNothing) {
  run_ranks(2, GetParam(), [](ProcessGroup& group) {
    float values[8] = {};
    const std::vector<std::size_t> one = {1}, two = {1, 1}, huge = {SIZE_MAX / 8, SIZE_MAX / 8};
    const auto refused = [&](const std::function<void()>& call, const char* because) {
      const std::string text = message_of(call);
      EXPECT_NE(text.find(because), std::string::npos) << text;
    };
    refused([&] { group.all_gather(values, values + 4, one, DType::kFloat32); },
            "1 counts for `receive`, the group has 2 ranks");
    refused([&] { group.all_gather(values, nullptr, two, DType::kFloat32); }, "the pointer to receive is null");
    refused([&] { group.all_gather(nullptr, values, two, DType::kFloat32); }, "the pointer to send is null");
    refused([&] { group.all_gather(values, values + 4, huge, DType::kFloat32); }, "the size of memory");
    refused([&] { group.all_to_all(values, one, values + 4, two, DType::kFloat32); }, "1 counts for `send`");
    refused([&] { group.all_to_all(values, two, values + 1, two, DType::kFloat32); }, "overlaps");
    const Region empty[] = {{nullptr, 3}};
    refused([&] { group.all_reduce_coalesced(empty, DType::kFloat32); }, "the pointer to buffer 0 is null");
    const Region overlapping[] = {{values + 4, 2}, {values, 2}, {values + 1, 2}};
    refused([&] { group.all_reduce_coalesced(overlapping, DType::kFloat32); }, "two of the buffers overlap");
    refused([&] { group.allocate(SIZE_MAX - 100); }, "the size of memory");
    refused([&] { group.allocate(SIZE_MAX / 4); }, "the size of memory");
    const std::vector<std::size_t> none = {0, 2};
    if (group.rank() == 0)
      group.all_gather(values, values, none, DType::kFloat32);  // it sends nothing, so it overlaps nothing
    if (group.rank() == 1)
      group.all_gather(values + 2, values + 4, none, DType::kFloat32, {.timeout = std::chrono::milliseconds::max()});
    std::int32_t number = 0;
    refused([&] { group.all_reduce(&number, 1, DType::kInt32, ReduceOp::kPremulSum); }, "pre-multiplied sum of int32");
    refused([&] { group.send(values, 1, DType::kFloat32, 2); }, "the group has ranks 0..1");
    refused([&] { group.send(values, 1, DType::kFloat32, kAnyRank); }, "the group has ranks 0..1");
    refused([&] { group.send(values, 1, DType::kFloat32, 0, -1); }, "tags must be >= 0");
    refused([&] { group.recv(nullptr, 1, DType::kFloat32, 0); }, "null");
    const void* const odd = reinterpret_cast<std::byte*>(values) + 1;
    auto* const odd_too = const_cast<void*>(odd);
    refused([&] { group.all_reduce(odd_too, 1, DType::kFloat32); }, "must be aligned to 4 bytes, the size of float32");
    refused([&] { group.reduce_scatter(values, odd_too, 1, DType::kInt64); },
            "must be aligned to 8 bytes, the size of int64");
    refused([&] { group.reduce(odd, nullptr, 1, DType::kBFloat16, ReduceOp::kSum, 1 - group.rank()); },
            "must be aligned to 2 bytes");
    const Region odd_region[] = {{values, 1}, {static_cast<std::byte*>(odd_too) + 4, 1}};
    refused([&] { group.all_reduce_coalesced(odd_region, DType::kFloat32); }, "buffer 1 must be aligned to 4 bytes");
    group.all_reduce(odd_too, 3, DType::kUInt8);      // a type without alignment
    group.broadcast(odd_too, 1, DType::kFloat32, 0);  // only copied
    group.all_reduce(odd_too, 0, DType::kFloat32);    // not touched
    refused([&] { group.barrier({.timeout = std::chrono::milliseconds(-1)}); }, "a call timeout of -1 ms");
    refused([&] { group.send(values, 1, DType::kFloat32, 0, 0, {.timeout = std::chrono::milliseconds(-5)}); },
            "a call timeout of -5 ms");
    refused([&] { group.recv(values, 1, DType::kFloat32, 0, 0, {.timeout = std::chrono::milliseconds(-5)}); },
            "a call timeout of -5 ms");
    refused([&] { group.monitored_barrier(std::chrono::milliseconds(-7)); }, "a call timeout of -7 ms");
    group.barrier();  // refused calls are not numbered
    group.leave();
    refused([&] { group.barrier(); }, "barrier: this rank has left the group");
    refused([&] { group.send(values, 1, DType::kFloat32, 0); }, "this rank has left the group");
    refused([&] { group.allocate(100); }, "this rank has left the group");
    EXPECT_THROW(group.split(0), InvalidArgument);
    group.leave();
  });
}

// The header allows this: one thread at a time calls a group, not always the same, and any thread waits for a Work.
TEST_P(GroupCalls, ThreadsTakeTurnsAndShareWork) {
  run_ranks(2, GetParam(), [](ProcessGroup& group) {
    std::vector<float> values(20000, 1.0f);
    for (int round = 0; round < 5; ++round) {
      Work work;
      std::thread([&] { work = group.all_reduce_async(values.data(), values.size(), DType::kFloat32); }).join();
      std::atomic<int> waited{0};
      std::vector<std::thread> waiters;
      for (int i = 0; i < 3; ++i)
        waiters.emplace_back([&, i, copy = work] {
          while (i == 0 && !copy.done()) std::this_thread::yield();
          copy.wait();
          ++waited;
        });
      for (std::thread& waiter : waiters) waiter.join();
      EXPECT_EQ(waited, 3);
      EXPECT_EQ(values[19999], static_cast<float>(2 << round));
    }
  });
}

// Two groups of the same ranks, each used by its own thread, at the same time.
TEST_P(GroupCalls, GroupsAreIndependent) {
  run_ranks(2, GetParam(), [](ProcessGroup& group) {
    const auto second = group.split(0);
    const auto work_on = [](ProcessGroup& mine, float start) {
      for (int round = 0; round < 40; ++round) {
        std::vector<float> values(3000, start);
        mine.all_reduce(values.data(), values.size(), DType::kFloat32);
        ASSERT_EQ(values[2999], 2 * start);
        std::int32_t number = mine.rank(), other = -1;
        const Work sent = mine.send_async(&number, 1, DType::kInt32, 1 - mine.rank());
        mine.recv(&other, 1, DType::kInt32, 1 - mine.rank());
        sent.wait();
        ASSERT_EQ(other, 1 - mine.rank());
      }
    };
    std::thread thread([&] { work_on(*second, 5); });
    work_on(group, 3);
    thread.join();
  });
}

INSTANTIATE_TEST_SUITE_P(Wires, GroupCalls, ::testing::Values("shm", "tcp"),
                         [](const auto& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace lockstep
