// Work::then(): the order of collectives, which failures affect which calls, flight records, allocations. Ranks are
// threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/core/error.h"
#include "src/comm/local/local_backend.h"
#include "src/comm/store/memory_store.h"
#include "src/comm/testing/delay_backend.h"
#include "src/comm/testing/recording_backend.h"
#include "tests/comm/thread_ranks.h"
#include "tests/support/heap_count.h"
#include "tests/support/message_of.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

// Returns each rank's error from the body, which must throw.
std::vector<std::string> failures_of(int ranks, const std::string& transport, std::chrono::milliseconds timeout,
                                     const std::function<void(ProcessGroup&)>& body) {
  const auto store = std::make_shared<MemoryStore>();
  std::vector<std::string> texts(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      const auto group =
          ProcessGroup::create({rank, ranks, rank, ranks}, store, "secret",
                               {.backend = "host", .transport = transport, .timeout = timeout, .store_timeout = 20s});
      texts[static_cast<std::size_t>(rank)] = message_of([&] { body(*group); });
    });
  for (std::thread& thread : threads) thread.join();
  return texts;
}

class Then : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Transports, Then, ::testing::Values("shm", "tcp"),
                         [](const auto& test) { return std::string(test.param); });

// The second call sends data that is computed from the first one's result; a third call, issued meanwhile, follows both
// on all ranks.
TEST_P(Then, ASecondCollectiveFollowsTheFirstAndKeepsItsPlaceAmongTheOthers) {
  for (const int ranks : {2, 4})
    run_ranks(ranks, GetParam(), [ranks](ProcessGroup& group) {
      for (int round = 0; round < 5; ++round) {
        float first = static_cast<float>(group.rank() + 1), second = 0, third = 1;
        const Work sum = group.all_reduce_async(&first, 1, DType::kFloat32);
        const Work follower = sum.then([&](Stream&) {
          second = first * 10 + static_cast<float>(group.rank());
          return group.all_reduce_async(&second, 1, DType::kFloat32, ReduceOp::kMax, {.purpose = {"follower"}});
        });
        const Work behind = group.broadcast_async(&third, 1, DType::kFloat32, 1);
        float result = 0;
        const Work computed = follower.then([&](Stream&) { result = second + 0.5f; });
        computed.wait();
        behind.wait();
        const float total = static_cast<float>(ranks * (ranks + 1)) / 2;
        ASSERT_EQ(first, total);
        ASSERT_EQ(result, total * 10 + static_cast<float>(ranks) - 0.5f);
        ASSERT_TRUE(sum.done());
      }
      group.barrier();
    });
}

// The caller continues: the calls that it issues do not wait for the continuation, which waits for the caller.
TEST_P(Then, NothingIsWaitedForInTheCallersThread) {
  run_ranks(2, GetParam(), [](ProcessGroup& group) {
    std::promise<void> gate;
    auto opened = gate.get_future().share();
    float value = 1, next = 0;
    const Work first = group.all_reduce_async(&value, 1, DType::kFloat32);
    const Work held = first.then([&](Stream&) {
      opened.wait();
      next = value * 2;
    });
    const Work last = group.all_reduce_async(&next, 1, DType::kFloat32);
    EXPECT_FALSE(held.done());
    gate.set_value();
    last.wait();
    EXPECT_TRUE(held.done());
    EXPECT_EQ(next, 8);
  });
}

TEST_P(Then, WhatIsComputedBetweenCallsIsWhatTheNextOneSends) {
  run_ranks(4, GetParam(), [](ProcessGroup& group) {
    std::vector<float> values(5000, static_cast<float>(group.rank()));
    group.compute_async(
        [&](Stream&) { std::transform(values.begin(), values.end(), values.begin(), [](float x) { return x + 1; }); });
    group.all_reduce_async(values.data(), values.size(), DType::kFloat32)
        .then([&](Stream&) {
          std::transform(values.begin(), values.end(), values.begin(), [](float x) { return x / 2; });
        })
        .wait();
    EXPECT_THAT(values, ::testing::Each(5.0f));
    group.barrier();
  });
}

TEST_P(Then, AFailedCallFailsWhatIsChainedBehindIt) {
  std::atomic<int> ran{0};
  const auto failures = failures_of(2, GetParam(), 20s, [&](ProcessGroup& group) {
    std::vector<float> values(8);
    const std::size_t count = group.rank() == 0 ? 8 : 7;  // a mismatch
    const Work first = group.all_reduce_async(values.data(), count, DType::kFloat32);
    const Work follower = first.then([&](Stream&) {
      ++ran;
      return group.all_reduce_async(values.data(), 8, DType::kFloat32);
    });
    follower.wait();
  });
  for (const std::string& text : failures) EXPECT_THAT(text, HasSubstr("float32 x 7"));
  EXPECT_EQ(ran, 0);
}

TEST_P(Then, AContinuationThatThrowsOnOneRankEndsTheGroupForAll) {
  const auto failures = failures_of(4, GetParam(), 20s, [&](ProcessGroup& group) {
    float value = 1;
    const Work first = group.all_reduce_async(&value, 1, DType::kFloat32);
    first
        .then([&](Stream&) {
          if (group.rank() == 2) throw std::runtime_error("no memory for factors");
          return group.all_reduce_async(&value, 1, DType::kFloat32);
        })
        .wait();
    group.barrier();
  });
  for (const std::string& text : failures)
    EXPECT_THAT(text, HasSubstr("rank 2 cannot go on: the follower #2: no memory for factors"));
}

TEST_P(Then, WhatItThrowsMayBeNoStdException) {
  const auto failures = failures_of(3, GetParam(), 20s, [&](ProcessGroup& group) {
    float value = 1;
    const Work first = group.all_reduce_async(&value, 1, DType::kFloat32);
    first
        .then([&](Stream&) {
          if (group.rank() == 1) throw 42;
          return group.all_reduce_async(&value, 1, DType::kFloat32);
        })
        .wait();
    group.barrier();
  });
  for (const std::string& text : failures)
    EXPECT_THAT(text, HasSubstr("rank 1 cannot go on: the follower #2: an exception that is not a std::exception"));
}

TEST_P(Then, TheFollowersDeadlineHolds) {
  const auto failures = failures_of(2, GetParam(), 20s, [&](ProcessGroup& group) {
    float value = 1;
    const Work first = group.all_reduce_async(&value, 1, DType::kFloat32);
    first.wait();
    if (group.rank() == 1) std::this_thread::sleep_for(2s);  // its follower is late
    first
        .then([&](Stream&) {
          return group.all_reduce_async(&value, 1, DType::kFloat32, ReduceOp::kSum, {.timeout = 300ms});
        })
        .wait();
    group.barrier();
  });
  EXPECT_THAT(failures[0], HasSubstr("all_reduce #2"));
  EXPECT_THAT(failures[0], HasSubstr("rank 1"));
  EXPECT_NE(failures[1], "nothing was thrown");
}

TEST_P(Then, RanksWithDifferentFollowersAreAMismatchOnAll) {
  const auto failures = failures_of(2, GetParam(), 20s, [&](ProcessGroup& group) {
    std::vector<float> values(8);
    const Work first = group.all_reduce_async(values.data(), 8, DType::kFloat32);
    first
        .then([&](Stream&) {
          return group.all_reduce_async(values.data(), group.rank() == 0 ? 8 : 4, DType::kFloat32, ReduceOp::kSum,
                                        {.purpose = {"factors"}});
        })
        .wait();
  });
  for (const std::string& text : failures) {
    EXPECT_THAT(text, HasSubstr("#2"));
    EXPECT_THAT(text, HasSubstr("float32 x 4"));
    EXPECT_THAT(text, HasSubstr("float32 x 8"));
  }
}

// Returns the error of a world of one; with several ranks, all others throw the same text.
std::string refusal_of(const std::function<void(ProcessGroup&, const Work&)>& misuse) {
  const auto failures = failures_of(2, "shm", 20s, [&](ProcessGroup& group) {
    float value = 1;
    misuse(group, group.all_reduce_async(&value, 1, DType::kFloat32));
    group.barrier();
  });
  EXPECT_NE(failures[1], "nothing was thrown");
  return failures[0];
}

TEST(Continuations, AreRefusedWhatTheyMustNotDo) {
  float value = 1;
  EXPECT_THAT(refusal_of([](ProcessGroup&, const Work& first) { first.then([](Stream&) { return Work(); }).wait(); }),
              HasSubstr("the follower #2 made no call"));
  EXPECT_THAT(
      refusal_of([](ProcessGroup& group, const Work& first) { first.then([&](Stream&) { group.barrier(); }).wait(); }),
      HasSubstr("which only computes"));
  EXPECT_THAT(refusal_of([&](ProcessGroup& group, const Work& first) {
                first
                    .then([&](Stream&) {
                      group.barrier();
                      return group.barrier_async();
                    })
                    .wait();
              }),
              HasSubstr("only an asynchronous collective can be called"));
  EXPECT_THAT(refusal_of([&](ProcessGroup& group, const Work& first) {
                first
                    .then([&](Stream&) {
                      group.barrier_async();
                      return group.barrier_async();
                    })
                    .wait();
              }),
              HasSubstr("which has made its one call"));
  EXPECT_THAT(refusal_of([&](ProcessGroup& group, const Work& first) {
                first
                    .then([&](Stream&) {
                      const Work mine = group.barrier_async();
                      return mine.then([](Stream&) {});
                    })
                    .wait();
              }),
              HasSubstr("chain further calls with then() on its Work"));
  EXPECT_THAT(refusal_of([&](ProcessGroup& group, const Work& first) {
                Work later;
                std::promise<void> issued;
                const Work chained = first.then([&](Stream&) {
                  issued.get_future().wait();
                  later.wait();
                });
                later = group.barrier_async();
                issued.set_value();
                chained.wait();
              }),
              HasSubstr("waits for a call that comes after it"));
  EXPECT_THAT(refusal_of([&](ProcessGroup& group, const Work& first) {
                const auto other = ProcessGroup::create({}, std::make_shared<MemoryStore>(), "");
                first.then([&](Stream&) { return other->all_reduce_async(&value, 1, DType::kFloat32); }).wait();
              }),
              HasSubstr("no calls of another group"));
  EXPECT_THAT(message_of([] { Work().then([](Stream&) {}); }), HasSubstr("does not belong to a collective"));
}

TEST(Continuations, AWorkThatOutlivesItsGroupSaysSo) {
  Work kept;
  {
    const auto group = ProcessGroup::create({}, std::make_shared<MemoryStore>(), "");
    kept = group->barrier_async();
  }
  EXPECT_THAT(message_of([&] { kept.then([](Stream&) {}); }), HasSubstr("this Work's process group was destroyed"));
}

TEST(Continuations, InAWorldOfOneRunAtOnce) {
  const auto group = ProcessGroup::wrap({}, std::make_unique<RecordingBackend>(make_local_backend()));
  float value = 3, twice = 0;
  const Work first = group->all_reduce_async(&value, 1, DType::kFloat32);
  first
      .then([&](Stream&) {
        twice = 2 * value;
        return group->broadcast_async(&twice, 1, DType::kFloat32, 0);
      })
      .then([&](Stream&) { twice += 1; })
      .wait();
  group->barrier();
  EXPECT_EQ(twice, 7);
  const auto calls = recorded(group->backend()).calls();
  ASSERT_EQ(calls.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(calls[i].operation.signature.sequence, i + 1);
  EXPECT_EQ(calls[1].operation.signature.kind, OperationKind::kBroadcast);
  EXPECT_THAT(message_of([&] { first.then([](Stream&) { throw Error("nothing left"); }); }), HasSubstr("nothing left"));
  EXPECT_THAT(message_of([&] { group->barrier(); }), HasSubstr("nothing left"));
}

TEST(Continuations, OverAWireThatTakesItsTimeAreDoneWithTheirCalls) {
  const auto group =
      ProcessGroup::wrap({.rank = 0, .world_size = 2}, std::make_unique<DelayBackend>(DelayCost{.alpha = 30ms}));
  float value = 3;
  const Work first = group->all_reduce_async(&value, 1, DType::kFloat32);
  const Work computed = first.then([&](Stream&) { value += 1; });
  const Work follower = first.then([&](Stream&) { return group->all_reduce_async(&value, 1, DType::kFloat32); });
  EXPECT_FALSE(follower.done());
  computed.wait();
  EXPECT_TRUE(first.done());
  follower.wait();
  EXPECT_EQ(value, 4);
}

TEST(Continuations, AllocateNothing) {
  run_ranks(1, "tcp", [](ProcessGroup& group) {
    float value = 1;
    ProcessGroup* const calls = &group;
    float* const data = &value;
    const auto chain = [&] {
      group.all_reduce_async(data, 1, DType::kFloat32)
          .then([calls, data](Stream&) { return calls->all_reduce_async(data, 1, DType::kFloat32); })
          .then([data](Stream&) { *data += 1; })
          .wait();
    };
    for (int i = 0; i < 3; ++i) chain();
    const std::size_t before = test_support::heap_allocations();
    for (int i = 0; i < 300; ++i) chain();
    EXPECT_EQ(test_support::heap_allocations(), before);
    EXPECT_EQ(value, 304);
  });
}

}  // namespace
}  // namespace lockstep
