// The end of continuations of Work::then(): their captures are destroyed with them, even the group itself, and leaving
// at the same time is not a failure. Ranks are threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/core/error.h"
#include "src/comm/host/host_backend.h"
#include "src/comm/host/machine/control_block.h"
#include "src/comm/host/machine/thread_memory_provider.h"
#include "src/comm/host/shm/shm_transport.h"
#include "src/comm/store/memory_store.h"
#include "src/comm/testing/recording_backend.h"
#include "tests/support/message_of.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

using Group = std::shared_ptr<ProcessGroup>;

// Runs the body on each of two ranks. It may release its group.
void run_two(const std::string& transport, const std::function<void(Group&, int rank)>& body) {
  const auto store = std::make_shared<MemoryStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      try {
        Group group =
            ProcessGroup::create({rank, 2, rank, 2}, store, "secret",
                                 {.backend = "host", .transport = transport, .timeout = 30s, .store_timeout = 20s});
        body(group, rank);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
}

bool is_true_soon(const std::function<bool()>& condition) {
  const auto until = std::chrono::steady_clock::now() + 20s;
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

bool has_ended(const Work& work) {
  try {
    return work.done();
  } catch (const Error&) {
    return true;
  }
}

class ContinuationEnds : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Transports, ContinuationEnds, ::testing::Values("shm", "tcp"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(ContinuationEnds, TheLastReferenceToTheGroupMayBeAContinuations) {
  run_two(GetParam(), [](Group& group, int) {
    const std::weak_ptr<ProcessGroup> alive = group;
    std::promise<void> gate;
    float value = 1;
    const Work first = group->all_reduce_async(&value, 1, DType::kFloat32);
    const Work held = first.then([group, opened = gate.get_future().share()](Stream&) { opened.wait(); });
    const Work behind = group->barrier_async();
    group.reset();
    EXPECT_FALSE(alive.expired());
    gate.set_value();
    held.wait();
    EXPECT_TRUE(alive.expired()) << "before the Work of the continuation is done";
    EXPECT_EQ(value, 2);
    EXPECT_THAT(message_of([&] { behind.wait(); }), HasSubstr("process group was destroyed"));
    EXPECT_THAT(message_of([&] { first.then([](Stream&) {}); }), HasSubstr("this Work's process group was destroyed"));
  });
}

TEST_P(ContinuationEnds, AFollowerMayLetTheGroupGoThatItsCallIsOf) {
  run_two(GetParam(), [](Group& group, int) {
    const std::weak_ptr<ProcessGroup> alive = group;
    std::promise<void> gate;
    float value = 1;
    const Work first = group->all_reduce_async(&value, 1, DType::kFloat32);
    const auto last = std::make_shared<Group>(group);
    Work made = first.then([last, &value, opened = gate.get_future().share()](Stream&) {
      opened.wait();
      const Work call = (*last)->all_reduce_async(&value, 1, DType::kFloat32);
      last->reset();
      return call;
    });
    group.reset();
    gate.set_value();
    made.wait();
    EXPECT_EQ(value, 4);
    EXPECT_TRUE(alive.expired());
  });
}

TEST_P(ContinuationEnds, NobodyNeedsToWaitForAGroupThatAContinuationEnds) {
  run_two(GetParam(), [](Group& group, int) {
    const std::weak_ptr<ProcessGroup> alive = group;
    const auto value = std::make_shared<float>(1);
    group->all_reduce_async(value.get(), 1, DType::kFloat32).then([group, value](Stream&) {});
    group.reset();
    EXPECT_TRUE(is_true_soon([&] { return alive.expired(); }));
  });
}

TEST_P(ContinuationEnds, WhatOneThatThrewHoldsGoes) {
  run_two(GetParam(), [](Group& group, int) {
    const auto held = std::make_shared<int>(1);
    const std::weak_ptr<ProcessGroup> alive = group;
    float value = 1;
    const Work first = group->all_reduce_async(&value, 1, DType::kFloat32);
    EXPECT_THAT(
        message_of([&] { first.then([held, group](Stream&) { throw std::runtime_error("nothing left"); }).wait(); }),
        HasSubstr("nothing left"));
    EXPECT_TRUE(is_true_soon([&] { return held.use_count() == 1; })) << "while the group is still there";
    group.reset();
    EXPECT_TRUE(is_true_soon([&] { return alive.expired(); }));
  });
}

TEST_P(ContinuationEnds, WhatOneThatNeverRanHoldsGoes) {
  run_two(GetParam(), [](Group& group, int rank) {
    const auto held = std::make_shared<int>(1);
    const std::weak_ptr<ProcessGroup> alive = group;
    std::vector<float> values(8);
    const Work mismatch = group->all_reduce_async(values.data(), rank == 0 ? 8 : 7, DType::kFloat32);
    std::vector<Work> chain;
    try {
      for (int i = 0; i < 5; ++i)
        chain.push_back(mismatch.then([held, group](Stream&) { FAIL() << "the call before it failed"; }));
    } catch (const MismatchError&) {
      // it has been tested already
    }
    for (const Work& work : chain) EXPECT_THAT(message_of([&] { work.wait(); }), HasSubstr("float32 x 7"));
    EXPECT_THAT(message_of([&] { group->barrier(); }), HasSubstr("float32 x 7"));
    EXPECT_TRUE(is_true_soon([&] { return held.use_count() == 1; })) << "while the group is still there";
    group.reset();
    EXPECT_TRUE(is_true_soon([&] { return alive.expired(); }));
  });
}

// A continuation that holds the Work to which it is chained, and so the queue that holds it.
TEST_P(ContinuationEnds, WhatOneHoldsThatItsGroupsEndDroppedGoes) {
  run_two(GetParam(), [](Group& group, int) {
    const auto held = std::make_shared<int>(1);
    std::promise<void> begun, gate;
    float value = 1;
    const Work first = group->all_reduce_async(&value, 1, DType::kFloat32);
    first.then([&begun, opened = gate.get_future().share()](Stream&) {
      begun.set_value();
      opened.wait();
    });
    const Work dropped = first.then([held, first](Stream&) { FAIL() << "the group has gone"; });
    begun.get_future().wait();
    std::thread opener([&] {
      EXPECT_TRUE(is_true_soon([&] { return has_ended(dropped); })) << "it is dropped when the group goes";
      gate.set_value();
    });
    group.reset();
    opener.join();
    EXPECT_EQ(held.use_count(), 1);
  });
}

// -- leaving while a follower runs

// The first leave() returns when the rank's follower has ended.
class SlowToLeave : public RecordingBackend {
 public:
  using RecordingBackend::RecordingBackend;
  void leave() noexcept override {
    if (auto call = std::exchange(leaving, {})) call();
    RecordingBackend::leave();
  }
  std::function<void()> leaving;
};

TEST(LeavingBesideAFollower, IsNoFailureOfTheGroup) {
  const auto meeting = std::make_shared<host::ThreadRendezvous>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      const Place place{rank, 2, rank, 2};
      auto memory = std::make_unique<host::ThreadMemoryProvider>(meeting);
      auto control = memory->share(host::ControlLayout::bytes(2), 20s);
      auto slow = std::make_unique<SlowToLeave>(make_host_backend(
          place, std::make_unique<host::ShmTransport>(place, std::move(memory), std::move(control)), 30s));
      SlowToLeave& backend = *slow;
      const Group group = ProcessGroup::wrap(place, std::move(slow), 30s);
      std::promise<void> gate;
      float value = 1;
      const Work first = group->all_reduce_async(&value, 1, DType::kFloat32);
      const Work follower = first.then([&, opened = gate.get_future().share()](Stream&) {
        opened.wait();
        return group->all_reduce_async(&value, 1, DType::kFloat32);
      });
      if (rank == 1) {
        backend.leaving = [&] {
          gate.set_value();
          EXPECT_TRUE(is_true_soon([&] { return has_ended(follower); }));
        };
        group->leave();
      } else {
        gate.set_value();
      }
      EXPECT_EQ(message_of([&] { follower.wait(); }), "nothing was thrown");
      EXPECT_EQ(value, 4);
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace lockstep
