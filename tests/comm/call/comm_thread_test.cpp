#include "src/comm/call/comm_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <new>
#include <string>
#include <vector>

#include "lockstep/core/error.h"
#include "tests/support/heap_count.h"
#include "tests/support/no_new_threads.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

Operation numbered(std::uint64_t number) {
  Operation operation;
  operation.signature.sequence = number;
  return operation;
}

std::string outcome_of(const std::function<void()>& call) {
  try {
    call();
    return "done";
  } catch (const std::exception& error) {
    return error.what();
  }
}

TEST(CommThread, ExecutesInOrderAndSynchronousCallsComeLast) {
  std::vector<std::uint64_t> executed;
  const auto queue = std::make_shared<CommThread>(
      [&](const Operation& operation) { executed.push_back(operation.signature.sequence); });
  std::vector<Work> works;
  for (std::uint64_t i = 1; i <= 1000; ++i)
    works.push_back(CommThread::start(queue, numbered(i)));  // more than there are slots
  queue->run(numbered(1001));
  ASSERT_EQ(executed.size(), 1001u);
  for (std::uint64_t i = 0; i < 1001; ++i) EXPECT_EQ(executed[i], i + 1);
  for (const Work& work : works) EXPECT_TRUE(work.done());
}

TEST(CommThread, SynchronousCallsRunInTheCaller) {
  std::thread::id ran_in;
  const auto queue = std::make_shared<CommThread>([&](const Operation&) { ran_in = std::this_thread::get_id(); });
  queue->run(numbered(1));
  EXPECT_EQ(ran_in, std::this_thread::get_id());
  CommThread::start(queue, numbered(2)).wait();
  EXPECT_NE(ran_in, std::this_thread::get_id());
}

TEST(CommThread, WaitSleepsUntilALongOperationIsOver) {
  std::promise<void> gate;
  auto opened = gate.get_future().share();
  const auto queue = std::make_shared<CommThread>([&](const Operation&) { opened.wait(); });
  const Work work = CommThread::start(queue, numbered(1));
  EXPECT_FALSE(work.done());
  auto waiter = std::async(std::launch::async, [&] { work.wait(); });
  EXPECT_EQ(waiter.wait_for(20ms), std::future_status::timeout);
  gate.set_value();
  waiter.get();
  EXPECT_TRUE(work.done());
}

TEST(CommThread, TheFirstFailureBreaksTheQueueForGood) {
  const auto queue = std::make_shared<CommThread>([&](const Operation& operation) {
    if (operation.signature.sequence == 2) throw PeerLost("rank 7 is gone");
    if (operation.signature.sequence > 2) ADD_FAILURE() << "executed after the failure";
  });
  const Work good = CommThread::start(queue, numbered(1));
  good.wait();
  const Work bad = CommThread::start(queue, numbered(2));
  EXPECT_THROW(bad.wait(), PeerLost);
  EXPECT_THROW(bad.done(), PeerLost);
  EXPECT_TRUE(good.done()) << "a complete operation stays complete";
  EXPECT_THROW(CommThread::start(queue, numbered(3)), PeerLost);
  EXPECT_THROW(queue->run(numbered(4)), PeerLost);
}

TEST(CommThread, IssuingAllocatesNothing) {
  std::atomic<std::uint64_t> executed{0};
  const auto queue = std::make_shared<CommThread>([&](const Operation&) { ++executed; });
  CommThread::start(queue, numbered(1)).wait();  // starts the thread
  const std::size_t before = test_support::heap_allocations();
  Work last;
  for (std::uint64_t i = 2; i <= 600; ++i) last = CommThread::start(queue, numbered(i));
  last.wait();
  queue->run(numbered(601));
  EXPECT_EQ(test_support::heap_allocations(), before);
  EXPECT_EQ(executed, 601u);
  ::operator delete(::operator new(1));
  EXPECT_EQ(test_support::heap_allocations(), before + 1) << "the counter counts";
}

TEST(CommThread, StoppingEndsWaitersAndDropsWhatHasNotBegun) {
  std::promise<void> begun, gate;
  auto opened = gate.get_future().share();
  std::atomic<int> executed{0};
  const auto queue = std::make_shared<CommThread>([&](const Operation&) {
    begun.set_value();
    opened.wait();
    ++executed;
  });
  const Work running = CommThread::start(queue, numbered(1)), dropped = CommThread::start(queue, numbered(2));
  begun.get_future().wait();
  auto waiter = std::async(std::launch::async, [&] { dropped.wait(); });
  auto stopping = std::async(std::launch::async, [&] { queue->stop(); });
  EXPECT_THROW(waiter.get(), PeerLost);
  EXPECT_EQ(stopping.wait_for(20ms), std::future_status::timeout) << "stop() waits for the running operation";
  gate.set_value();
  stopping.get();
  EXPECT_EQ(executed, 1);
  EXPECT_THROW(dropped.done(), PeerLost);
}

TEST(CommThread, FailWakesWaiters) {
  std::promise<void> gate;
  auto opened = gate.get_future().share();
  const auto queue = std::make_shared<CommThread>([&](const Operation&) { opened.wait(); });
  CommThread::start(queue, numbered(1));
  const Work work = CommThread::start(queue, numbered(2));
  auto waiter = std::async(std::launch::async, [&] { EXPECT_THROW(work.wait(), TimeoutError); });
  queue->fail(std::make_exception_ptr(TimeoutError("enough")));
  EXPECT_EQ(waiter.wait_for(20s), std::future_status::ready);
  gate.set_value();
}

// After the wait the caller may free the buffers of the call.
TEST(CommThread, AWaiterIsNotReleasedWhileItsOperationIsExecuted) {
  for (const bool succeeds : {true, false}) {
    std::promise<void> begun, gate;
    auto opened = gate.get_future().share();
    const auto queue = std::make_shared<CommThread>([&](const Operation&) {
      begun.set_value();
      opened.wait();
      if (!succeeds) throw TimeoutError("nobody came");
    });
    const Work work = CommThread::start(queue, numbered(1));
    begun.get_future().wait();
    auto waiter = std::async(std::launch::async, [&] { return outcome_of([&] { work.wait(); }); });
    auto stopping = std::async(std::launch::async, [&] { queue->stop(); });
    EXPECT_EQ(waiter.wait_for(100ms), std::future_status::timeout);
    EXPECT_FALSE(work.done());
    gate.set_value();
    EXPECT_EQ(waiter.get(),
              succeeds ? "done" : "this rank's process group was destroyed: wait for its Works before you destroy it");
    stopping.get();
  }
}

// A caller that has seen is_executing(), and so left work to the thread, is called back.
TEST(CommThread, SaysWhenItHasEndedAnExecution) {
  CommThread* asked = nullptr;
  std::atomic<int> idle{0};
  const auto queue = std::make_shared<CommThread>(
      [](const Operation& operation) {
        if (operation.signature.sequence == 3) throw PeerLost("the end");
      },
      [&] { idle += asked->is_executing() ? 0 : 1; });
  asked = queue.get();
  const Work first = CommThread::start(queue, numbered(1)), second = CommThread::start(queue, numbered(2)),
             third = CommThread::start(queue, numbered(3));
  first.wait();
  second.wait();
  EXPECT_THROW(third.wait(), PeerLost);
  queue->stop();
  EXPECT_GE(idle.load(), 3);
}

TEST(CommThread, WithoutAThreadItIsOverAndNoCallWaits) {
  const auto queue = std::make_shared<CommThread>([&](const Operation&) {});
  {
    const test_support::NoNewThreads no_new_threads;
    const std::string text = outcome_of([&] { CommThread::start(queue, numbered(1)); });
    EXPECT_NE(text.find("communication thread cannot be started"), std::string::npos) << text;
  }
  auto blocking = std::async(std::launch::async, [&] { EXPECT_THROW(queue->run(numbered(2)), Error); });
  if (blocking.wait_for(20s) == std::future_status::ready) return;
  ADD_FAILURE() << "a blocking call waits for an operation that no thread executes";
  queue->stop();  // otherwise it would wait forever
}

TEST(CommThread, ManyHandOversLoseNoWakeUp) {
  std::atomic<int> executed{0};
  const auto queue = std::make_shared<CommThread>([&](const Operation&) { ++executed; });
  for (int i = 0; i < 2000; ++i) {
    CommThread::start(queue, numbered(1)).wait();
    if (i % 200 == 0) std::this_thread::sleep_for(3ms);  // long enough for the thread to fall asleep
  }
  EXPECT_EQ(executed, 2000);
}

}  // namespace
}  // namespace lockstep
