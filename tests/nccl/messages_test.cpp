// Messages of a group whose device is a GPU, simulated by threads: waits, refusals, endings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>

#include "lockstep/core/error.h"
#include "tests/nccl/gpu_members.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr std::size_t kCount = 50000;

TEST(MessagesOnGpus, TheHostQueuesAndDoesNotWait) {
  const auto said = run_members(2, [](Member& member) {
    ProcessGroup& group = member.group;
    Stream& stream = member.device.default_stream();
    float* const data = member.numbers(kCount, 0);
    if (group.rank() == 0) {
      member.device.hold_default_stream();
      member.device.kernels().fill({data, {kCount}}, 3, stream);
      const Work work = group.send_async(data, kCount, DType::kFloat32, 1, 0, kOnGpu);
      EXPECT_FALSE(work.done()) << "the host came here while nothing has run";
      work.stream_wait(stream);  // once it is copied, the memory may change
      member.device.kernels().fill({data, {kCount}}, 4, stream);
      member.device.release_default_stream();
      work.wait();
      EXPECT_TRUE(work.done());
      stream.synchronize();
      EXPECT_EQ(data[kCount - 1], 4);
    } else {
      int sender = -7;
      const Work work = group.recv_async(data, kCount, DType::kFloat32, kAnyRank, 0, &sender, kOnGpu);
      work.stream_wait(stream);
      EXPECT_EQ(sender, 0);
      member.device.kernels().scale({data, {kCount}}, 2, {data, {kCount}}, stream);
      stream.synchronize();
      for (std::size_t i = 0; i < kCount; ++i) ASSERT_EQ(data[i], 6) << i;
      work.wait();
    }
  });
  EXPECT_THAT(said, Each(kNothing));
}

// The default stream's earlier work on the memory comes before the message's data.
TEST(MessagesOnGpus, ComeBehindWhatTheDefaultStreamHeld) {
  const auto said = run_members(
      1,
      [](Member& member) {
        float *const from = member.numbers(kCount, 3), *const to = member.numbers(kCount, 0);
        member.device.default_stream().synchronize();
        const Work out = member.group.send_async(from, kCount, DType::kFloat32, 0, 0, kOnGpu);
        out.wait();
        member.device.hold_default_stream();
        member.device.kernels().fill({to, {kCount}}, 9, member.device.default_stream());
        const Work in = member.group.recv_async(to, kCount, DType::kFloat32, 0, 0, nullptr, kOnGpu);
        EXPECT_FALSE(in.done());
        member.device.release_default_stream();
        in.wait();
        for (std::size_t i = 0; i < kCount; ++i) ASSERT_EQ(to[i], 3) << i;
      },
      "nccl");
  EXPECT_THAT(said, Each(kNothing));
}

TEST(MessagesOnGpus, GoToAndComeFromHostMemory) {
  const auto said = run_members(2, [](Member& member) {
    ProcessGroup& group = member.group;
    std::array<float, 100> here{};
    if (group.rank() == 0) {
      float* const there = member.numbers(100, 5);
      group.send(there, 100, DType::kFloat32, 1, 7, kOnGpu);
      EXPECT_EQ(group.recv(there, 100, DType::kFloat32, kAnyRank, 8, kOnGpu), 1);
      EXPECT_EQ(there[99], 6);
    } else {
      EXPECT_EQ(group.recv(here.data(), 100, DType::kFloat32, 0, 7), 0);
      EXPECT_EQ(here[99], 5);
      here.fill(6);
      group.send(here.data(), 100, DType::kFloat32, 0, 8);
    }
  });
  EXPECT_THAT(said, Each(kNothing));
}

// NCCL's own messages would wait for each other forever.
TEST(MessagesOnGpus, OfOppositeOrdersMeet) {
  const auto said = run_members(2, [](Member& member) {
    const int me = member.group.rank(), peer = 1 - me;
    for (int round = 0; round < 20; ++round) {
      std::array<float*, 2> got{member.numbers(kCount, 0), member.numbers(kCount, 0)};
      std::array<Work, 2> works, sent;
      for (const int step : {0, 1}) {
        const int tag = step == me ? 0 : 1;
        const auto at = static_cast<std::size_t>(tag);
        sent[at] = member.group.send_async(member.numbers(kCount, static_cast<float>(10 * me + tag)), kCount,
                                           DType::kFloat32, peer, tag, kOnGpu);
        works[at] = member.group.recv_async(got[at], kCount, DType::kFloat32, peer, tag, nullptr, kOnGpu);
      }
      for (const int tag : {0, 1}) {
        works[static_cast<std::size_t>(tag)].wait();
        ASSERT_EQ(got[static_cast<std::size_t>(tag)][kCount - 1], static_cast<float>(10 * peer + tag));
      }
      for (const Work& work : sent) work.wait();
    }
  });
  EXPECT_THAT(said, Each(kNothing));
}

TEST(MessagesOnGpus, AreRefusedWhileAGraphIsRecorded) {
  const auto said = run_members(2, [](Member& member) {
    Stream& stream = member.device.default_stream();
    float* const data = member.numbers(10, 1);
    const auto send = [&] { member.group.send_async(data, 10, DType::kFloat32, 0, 0, kOnGpu); };
    const auto receive = [&] { member.group.recv_async(data, 10, DType::kFloat32, 0, 0, nullptr, kOnGpu); };
    member.device.begin_capture(stream);
    const auto reason = HasSubstr("a graph is being recorded, and a message would go once, and not with every launch");
    EXPECT_THAT(message_of(send), AllOf(HasSubstr("send to rank 0 (tag 0, float32 x 10) on rank "), reason));
    EXPECT_THAT(message_of(receive), AllOf(HasSubstr("recv from rank 0 (tag 0, float32 x 10) on rank "), reason));
    member.device.kernels().fill({data, {10}}, 2, stream);
    member.device.end_capture(stream);
    member.group.begin_capture();
    EXPECT_THAT(message_of(send), HasSubstr("only asynchronous collectives can be part of it"));
    member.group.end_capture();
    member.group.barrier();
  });
  EXPECT_THAT(said, Each(kNothing));
}

TEST(MessagesOnGpus, ThatAGpuDoesNotCopyEndAtTheDeadline) {
  for (const bool is_sender : {true, false}) {
    const auto said = run_members(2, [&](Member& member) {
      ProcessGroup& group = member.group;
      float* const data = member.numbers(kCount, 1);
      CallOptions soon = kOnGpu;
      soon.timeout = 300ms;
      const bool is_slow = (group.rank() == 0) == is_sender;
      if (is_slow) member.device.hold_default_stream();
      const std::string text = message_of([&] {
        const CallOptions& call = is_slow ? soon : kOnGpu;
        if (group.rank() == 0) group.send(data, kCount, DType::kFloat32, 1, 0, call);
        if (group.rank() == 1) group.recv(data, kCount, DType::kFloat32, 0, 0, call);
        group.barrier();
      });
      member.device.release_default_stream();
      throw Error("{}", text);
    });
    const std::string reason =
        is_sender ? "send to rank 1 (tag 0, float32 x 50000): the GPU of rank 0 has not copied the data to host"
                  : "recv from rank 0 (tag 0, float32 x 50000): the GPU of rank 1 has not copied the data from host";
    EXPECT_THAT(said, Each(HasSubstr(reason)));
    EXPECT_THAT(said[is_sender ? 1 : 0], HasSubstr("aborted the group: "));
  }
}

TEST(MessagesOnGpus, WhoseWorksAreDroppedArriveInOrder) {
  const auto said = run_members(2, [](Member& member) {
    constexpr int kMessages = 200;
    ProcessGroup& group = member.group;
    for (int i = 0; i < kMessages; ++i) {
      const auto number = static_cast<float>(i);
      if (group.rank() == 0) {
        group.send_async(member.numbers(10, number), 10, DType::kFloat32, 1, 0, kOnGpu);
      } else {
        float* const data = member.numbers(10, -1);
        group.recv(data, 10, DType::kFloat32, 0, 0, kOnGpu);
        ASSERT_EQ(data[9], number);
      }
    }
    group.barrier();
  });
  EXPECT_THAT(said, Each(kNothing));
}

// When the group is destroyed, the device has copies under way, and a message that was never sent is awaited.
TEST(MessagesOnGpus, MayOutliveTheirGroup) {
  RecordingDevice device;
  const Buffer memory = device.allocate(kCount * sizeof(float));
  std::optional<Work> out, in;
  {
    ProcessGroupOptions options{.backend = "nccl", .device = &device};
    const auto group = ProcessGroup::create({}, std::make_shared<TableStore>(), "secret", options);
    in = group->recv_async(memory.data(), 10, DType::kFloat32, 0, 1, nullptr, kOnGpu);
    group->recv_async(memory.data(), 10, DType::kFloat32, 0, 2, nullptr, kOnGpu);
    device.hold_default_stream();
    out = group->send_async(memory.data(), kCount, DType::kFloat32, 0, 0, kOnGpu);
    group->send_async(memory.data(), kCount, DType::kFloat32, 0, 0, kOnGpu);
  }
  EXPECT_THROW(out->wait(), PeerLost);
  EXPECT_THROW(out->done(), PeerLost);
  EXPECT_THROW(in->wait(), PeerLost);
  device.release_default_stream();
  device.default_stream().synchronize();
}

TEST(MonitoredBarrierOnGpus, IsNotDisturbedByMessagesAndNamesWhoIsMissing) {
  const auto said = run_members(3, [](Member& member) {
    ProcessGroup& group = member.group;
    const int to = (group.rank() + 1) % 3, from = (group.rank() + 2) % 3;
    float *const mine = member.numbers(kCount, static_cast<float>(group.rank())), *const got =
                                                                                      member.numbers(kCount, -1);
    const Work in = group.recv_async(got, kCount, DType::kFloat32, from, 0, nullptr, kOnGpu);
    group.monitored_barrier(20s, kOnGpu);
    const Work out = group.send_async(mine, kCount, DType::kFloat32, to, 0, kOnGpu);
    group.monitored_barrier(20s);
    in.wait();
    out.wait();
    EXPECT_EQ(got[kCount - 1], static_cast<float>(from));
    group.barrier();
    if (group.rank() == 1) {
      EXPECT_THAT(message_of([&] { group.recv(got, 1, DType::kFloat32, 0, 9, kOnGpu); }),
                  HasSubstr("monitored_barrier"));
    } else {
      group.monitored_barrier(1s);
    }
  });
  EXPECT_EQ(said[1], kNothing);
  EXPECT_THAT(said[0] + said[2], HasSubstr("rank 1 of 3 did not arrive within 1 s"));
}

}  // namespace
}  // namespace lockstep::testing
