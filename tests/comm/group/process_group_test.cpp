// The group itself, in worlds of one and with ranks that are threads. The conformance suite tests the collectives.
#include "lockstep/comm/process_group.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <future>
#include <thread>

#include "lockstep/core/error.h"
#include "src/comm/local/local_backend.h"
#include "src/comm/rendezvous/group_rendezvous.h"
#include "src/comm/rendezvous/unix_rendezvous.h"
#include "src/comm/store/memory_store.h"
#include "src/comm/testing/delay_backend.h"
#include "src/core/process/compute_threads.h"
#include "tests/support/message_of.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

TEST(WorldOfOne, OnlyTheFirstOfAProcessSetsItsThreads) {
  const auto first = ProcessGroup::create({}, std::make_shared<MemoryStore>(), "");
  const int shared = compute_threads();
  set_compute_threads(shared + 5);
  if (compute_threads() == shared) GTEST_SKIP() << "OMP_NUM_THREADS is set";
  const auto second = ProcessGroup::create({}, std::make_shared<MemoryStore>(), "");
  EXPECT_EQ(compute_threads(), shared + 5);
  set_compute_threads(0);
}

TEST(WorldOfOne, CollectivesAreTheIdentity) {
  const auto group = ProcessGroup::create({}, std::make_shared<MemoryStore>(), "");
  EXPECT_EQ(group->backend().name(), "local");
  float value = 3;
  group->all_reduce(std::span(&value, 1), ReduceOp::kAvg);
  group->broadcast(std::span(&value, 1), 0);
  float gathered = 0;
  group->all_gather(&value, &gathered, 1, DType::kFloat32);
  EXPECT_EQ(gathered, 3);
  group->barrier();
  group->all_reduce(nullptr, 0, DType::kFloat32);
  EXPECT_EQ(group->broadcast_text("words", 0, {.device = DeviceKind::kCuda}), "words")
      << "texts are in host memory whatever the options";
  EXPECT_EQ(group->all_gather_text("words"), std::vector<std::string>{"words"});
  const Buffer memory = group->allocate(100);
  EXPECT_EQ(memory.data()[99], std::byte{0});
}

// The child has none of the group's threads; a goodbye from it would be the parent's.
TEST(ForkedChild, EndsItsCopyOfAGroupWithoutAWord) {
  for (const char* transport : {"tcp", "shm"}) {
    const auto store = std::make_shared<MemoryStore>();
    std::thread ranks[2];
    for (int rank = 0; rank < 2; ++rank)
      ranks[rank] = std::thread([&, rank] {
        auto group = ProcessGroup::create({rank, 2, rank, 2}, store, "",
                                          {.backend = "host", .transport = transport, .timeout = 20s});
        group->barrier();
        if (rank == 0) {
          const pid_t child = fork();
          if (child == 0) {
            group->leave();
            group.reset();
            _exit(0);
          }
          int status = -1;
          EXPECT_EQ(waitpid(child, &status, 0), child);
          EXPECT_EQ(status, 0);
        }
        EXPECT_NO_THROW(group->barrier()) << transport;
      });
    for (std::thread& rank : ranks) rank.join();
  }
}

TEST(Timeouts, OfAnyLengthAreFine) {
  const auto forever = std::chrono::milliseconds::max();
  const auto store = std::make_shared<MemoryStore>();
  std::thread ranks[2];
  for (int rank = 0; rank < 2; ++rank)
    ranks[rank] = std::thread([&, rank] {
      const ProcessGroupOptions options{.backend = "host",
                                        .transport = "tcp",
                                        .timeout = forever,
                                        .stall_timeout = forever,
                                        .store_timeout = forever};
      EXPECT_NO_THROW({
        const auto group = ProcessGroup::create({rank, 2, rank, 2}, store, "", options);
        std::this_thread::sleep_for(20ms);
        group->barrier();
        group->allocate(100);
      });
    });
  for (std::thread& rank : ranks) rank.join();
}

TEST(Timeouts, OfNothingAndLessAreRefused) {
  for (const auto wrong : {0ms, -1ms}) {
    for (const ProcessGroupOptions& options :
         {ProcessGroupOptions{.timeout = wrong}, ProcessGroupOptions{.store_timeout = wrong},
          ProcessGroupOptions{.stall_timeout = wrong}}) {
      const std::string text =
          message_of([&] { ProcessGroup::create({}, std::make_shared<MemoryStore>(), "", options); });
      EXPECT_NE(text.find("timeout is " + std::to_string(wrong.count()) + " ms"), std::string::npos) << text;
    }
    EXPECT_THROW(ProcessGroup::wrap({}, make_local_backend(), wrong), InvalidArgument);
  }
}

TEST(WorldOfOne, MisuseIsRefusedBeforeAnythingHappens) {
  const auto group = ProcessGroup::create({}, std::make_shared<MemoryStore>(), "");
  std::int32_t number = 1;
  EXPECT_NE(message_of([&] { group->all_reduce(nullptr, 1, DType::kFloat32); }).find("is null"), std::string::npos);
  EXPECT_NE(message_of([&] { group->broadcast(std::span(&number, 1), 1); }).find("root 1 does not exist"),
            std::string::npos);
  EXPECT_NE(message_of([&] { group->all_reduce(std::span(&number, 1), ReduceOp::kAvg); }).find("average of int32"),
            std::string::npos);
  EXPECT_THROW(group->all_reduce(&number, SIZE_MAX / 2, DType::kFloat64), InvalidArgument);
  EXPECT_THROW(group->allocate(4, DeviceKind::kCuda), InvalidArgument);
  EXPECT_THROW(group->all_reduce(&number, 1, static_cast<DType>(99)), InvalidArgument);
  std::int32_t numbers[3] = {1, 2, 3};
  EXPECT_NE(message_of([&] { group->all_gather(numbers, numbers + 1, 2, DType::kInt32); }).find("overlaps"),
            std::string::npos);
  group->all_gather(numbers, numbers, 2, DType::kInt32);
  group->all_gather(numbers, numbers + 2, 1, DType::kInt32);
  EXPECT_EQ(numbers[2], 1);
  EXPECT_THROW(ProcessGroup::create({2, 2, 0, 1}, std::make_shared<MemoryStore>(), ""), InvalidArgument);
  EXPECT_NE(message_of([] {
              ProcessGroup::create({}, std::make_shared<MemoryStore>(), "", {.backend = "pigeon"});
            }).find("'pigeon'"),
            std::string::npos);
  EXPECT_NE(message_of([] {
              ProcessGroup::create({}, std::make_shared<MemoryStore>(), "", {.transport = "udp"});
            }).find("'udp'"),
            std::string::npos);
}

TEST(WorldOfOne, OperationsWithPartsCopyOrRefuse) {
  const auto group = ProcessGroup::create({}, std::make_shared<MemoryStore>(), "");
  const std::int32_t sent[2] = {5, 6};
  std::int32_t received[2] = {};
  const auto expect_copied = [&] {
    EXPECT_EQ(received[0], 5);
    EXPECT_EQ(received[1], 6);
    received[0] = received[1] = 0;
  };
  group->reduce(sent, received, 2, DType::kInt32, ReduceOp::kBitXor, 0);
  expect_copied();
  group->reduce_scatter(sent, received, 2, DType::kInt32, ReduceOp::kMax);
  expect_copied();
  group->gather(sent, received, 2, DType::kInt32, 0);
  expect_copied();
  group->scatter_async(sent, received, 2, DType::kInt32, 0).wait();
  expect_copied();
  group->all_to_all(sent, received, 2, DType::kInt32);
  expect_copied();
  group->all_reduce(sent, received, 2, DType::kInt32);
  expect_copied();
  group->barrier_async().wait();
  float number = 1;
  EXPECT_NE(message_of([&] { group->all_reduce(std::span(&number, 1), ReduceOp::kBitOr); }).find("bit_or of float32"),
            std::string::npos);
  EXPECT_NE(message_of([&] { group->gather(sent, nullptr, 1, DType::kInt32, 0); }).find("receive is null"),
            std::string::npos);
  EXPECT_NE(message_of([&] { group->scatter(nullptr, received, 1, DType::kInt32, 0); }).find("send is null"),
            std::string::npos);
  EXPECT_NE(message_of([&] { group->gather(sent, received, 1, DType::kInt32, -1); }).find("root -1"),
            std::string::npos);
  EXPECT_NE(message_of([&] { group->all_to_all(received, received + 1, 2, DType::kInt32); }).find("the same pointer"),
            std::string::npos);
}

TEST(WorldOfOne, AbortEndsTheGroup) {
  const auto group = ProcessGroup::wrap({}, make_local_backend());
  group->abort("enough");
  EXPECT_NE(message_of([&] { group->barrier(); }).find("enough"), std::string::npos);
}

TEST(Joining, ASecondProcessWithTheSameRankIsNamed) {
  MemoryStore store;
  const Place first{0, 1, 0, 1};
  register_rank(first, store, 1s);
  const std::string message = message_of([&] { register_rank(first, store, 1s); });
  EXPECT_NE(message.find("rank 0 is taken: process " + std::to_string(getpid())), std::string::npos) << message;
}

TEST(Joining, MissingRanksAreNamed) {
  MemoryStore store;
  auto other = std::async(std::launch::async, [&] {
    return message_of([&] { register_rank({2, 4, 0, 1}, store, 1s); });
  });
  const std::string message = message_of([&] { register_rank({0, 4, 0, 1}, store, 1s); });
  EXPECT_NE(message.find("rank 0: ranks 1, 3 of 4 did not arrive"), std::string::npos) << message;
  const std::string others = other.get();
  EXPECT_NE(others.find("rank 2: ranks 1, 3 of 4 did not arrive"), std::string::npos) << others;
}

TEST(Joining, WithoutRankZeroTheOthersNameIt) {
  MemoryStore store;
  const std::string message = message_of([&] { register_rank({1, 3, 0, 1}, store, 50ms); });
  EXPECT_NE(message.find("rank 1: ranks 0, 2 of 3 did not arrive"), std::string::npos) << message;
}

TEST(Joining, WorldSizesMustAgree) {
  MemoryStore store;
  auto other = std::async(std::launch::async, [&] {
    return message_of([&] { register_rank({1, 2, 0, 1}, store, 20s); });
  });
  const std::string message = message_of([&] { register_rank({0, 3, 0, 1}, store, 20s); });
  EXPECT_NE(message.find("rank 0: rank 0 expects 3 ranks, rank 1 expects 2"), std::string::npos) << message;
  const std::string others = other.get();
  EXPECT_NE(others.find("rank 1: rank 0 expects 3 ranks, rank 1 expects 2"), std::string::npos) << others;
  // A rank outside rank 0's world arrives when the others have agreed already.
  MemoryStore later;
  register_rank({0, 1, 0, 1}, later, 1s);
  const std::string stray = message_of([&] { register_rank({1, 2, 0, 1}, later, 1s); });
  EXPECT_NE(stray.find("rank 1 expects 2 ranks, rank 0 expects 1"), std::string::npos) << stray;
}

TEST(Joining, RanksOfAnMpirunJobFindTheStoreByTheJobsName) {
  const std::string job = "test-" + std::to_string(getpid());
  const UnixRendezvousServer server(job, {4321, "secret"});
  const StoreContact contact = query_unix_rendezvous(job, 10s);
  EXPECT_EQ(contact.port, 4321);
  EXPECT_EQ(contact.token, "secret");
  EXPECT_THROW(UnixRendezvousServer(job, {1, ""}), RendezvousError) << "a second rank 0";
  EXPECT_THROW(query_unix_rendezvous(job + "-other", 50ms), RendezvousError);
}

TEST(DelayBackend, OperationsTakeTurnsAndTheirTime) {
  auto owned = std::make_unique<DelayBackend>(DelayCost{200ms, 1.0});
  DelayBackend& wire = *owned;
  const auto group = ProcessGroup::wrap({}, std::move(owned));
  std::vector<float> data(1'000'000, 2.f);
  const Work first =
      group->all_reduce_async(data.data(), data.size(), DType::kFloat32, ReduceOp::kAvg, {.purpose = {"bucket", 0}});
  const Work second =
      group->all_reduce_async(data.data(), 1, DType::kFloat32, ReduceOp::kAvg, {.purpose = {"bucket", 1}});
  EXPECT_FALSE(first.done());
  second.wait();
  EXPECT_TRUE(first.done());
  EXPECT_EQ(data[7], 2.f);
  const auto events = wire.events();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].finished - events[0].started, 200ms + 4ms) << "alpha, and 4 MB at 1 GB/s";
  EXPECT_EQ(events[1].started, events[0].finished);
  EXPECT_EQ(events[1].purpose_index, 1);
  EXPECT_GE(std::chrono::steady_clock::now(), events[1].finished);
  group->abort("over");
  EXPECT_THROW(group->barrier(), PeerLost);
  EXPECT_TRUE(first.done()) << "a complete operation stays complete";
  first.wait();
}

}  // namespace
}  // namespace lockstep
