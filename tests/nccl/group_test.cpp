// A process group whose device is a GPU, simulated by threads: which backend serves which memory, one sequence of
// calls, one end; graphs; refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "lockstep/comm/process_group.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "tests/nccl/gpu_members.h"
#include "tests/support/temporary.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

// For groups that are made as programs make them.
const bool kStubIsTheLibrary = setenv(env::kNcclLibrary, STUB_NCCL, 1) == 0;

TEST(GroupOnGpus, TakesHostMemoryOverTheRingAndTheGpusOverNccl) {
  const auto said = run_members(3, [](Member& member) {
    ProcessGroup& group = member.group;
    EXPECT_EQ(&group.local_device(), &member.device);
    EXPECT_EQ(group.backend(DeviceKind::kCpu).name(), "host");
    EXPECT_EQ(group.backend(DeviceKind::kCuda).name(), "nccl");
    const auto one = static_cast<float>(group.rank() + 1);
    float here[4] = {one, one, one, one};
    float* const there = member.numbers(1000, one);
    const Buffer registered = group.allocate(4000, DeviceKind::kCuda);
    EXPECT_EQ(registered.device(), &member.device);
    const Work work = group.all_reduce_async(there, 1000, DType::kFloat32, ReduceOp::kSum, kOnGpu);
    group.all_reduce(here, 4, DType::kFloat32);
    EXPECT_EQ(here[3], 6);
    EXPECT_EQ(group.broadcast_text(group.rank() == 1 ? "words" : "", 1, kOnGpu), "words") << "texts lie in host memory";
    work.wait();
    EXPECT_EQ(there[999], 6);
    group.barrier(kOnGpu);
  });
  EXPECT_THAT(said, Each(kNothing));
}

TEST(GroupOnGpus, SplitsIntoGroupsOnGpus) {
  const auto said = run_members(4, [](Member& member) {
    const auto half = member.group.split(member.group.rank() % 2);
    float* const there = member.numbers(10, static_cast<float>(member.group.rank()));
    half->all_reduce(there, 10, DType::kFloat32, ReduceOp::kSum, kOnGpu);
    EXPECT_EQ(there[9], member.group.rank() % 2 == 0 ? 2 : 4);
    const auto alone = member.group.split(member.group.rank());
    EXPECT_EQ(alone->backend(DeviceKind::kCuda).name(), "local");
    alone->all_reduce(there, 10, DType::kFloat32, ReduceOp::kAvg, kOnGpu);
    EXPECT_EQ(there[9], member.group.rank() % 2 == 0 ? 2 : 4);
  });
  EXPECT_THAT(said, Each(kNothing));
}

TEST(GroupOnGpus, CountsCallsOfBothKindsInOneSequence) {
  const std::string path = temporary("record.json");
  const auto said = run_members(2, [&](Member& member) {
    float here = 1;
    member.group.all_reduce(&here, 1, DType::kFloat32);
    member.group.all_reduce(member.numbers(10, 1), 10, DType::kFloat32, ReduceOp::kSum, kOnGpu);
    member.group.broadcast_async(member.numbers(5, 1), 5, DType::kFloat32, 0, kOnGpu).wait();
    member.group.barrier();
    if (member.group.rank() == 0) member.group.dump_flight_record(path);
    member.group.barrier();
  });
  EXPECT_THAT(said, Each(kNothing));
  std::ifstream file(path);
  const auto record = nlohmann::json::parse(file);
  std::filesystem::remove(path);
  bool found = false;
  for (const auto& group : record.at("groups")) {
    // The records also contain failed groups of other tests.
    if (group.at("backend") != "host, nccl" || group.at("rank") != 0 || !group.at("failure").is_null()) continue;
    found = true;
    const auto& operations = group.at("operations");
    ASSERT_EQ(operations.size(), 4u) << operations;
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(operations[i].at("sequence"), i + 1) << operations[i];
      EXPECT_EQ(operations[i].at("state"), "finished") << operations[i];
    }
  }
  EXPECT_TRUE(found) << record;
}

TEST(GroupOnGpus, IsOverWithTheFirstOfItsBackends) {
  const auto start = std::chrono::steady_clock::now();
  const auto said = run_members(2, [](Member& member) {
    const std::size_t count = member.group.rank() == 0 ? 10 : 9;
    float* const there = member.numbers(10, 1);
    EXPECT_THAT(message_of([&] { member.group.all_reduce(there, count, DType::kFloat32, ReduceOp::kSum, kOnGpu); }),
                AllOf(HasSubstr("rank 0: all_reduce #1 (float32 x 10, sum)"),
                      HasSubstr("rank 1: all_reduce #1 (float32 x 9, sum)")));
    for (int i = 0; i < 1000; ++i) {  // until the error has passed from one backend to the other
      member.group.barrier();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  EXPECT_THAT(said, Each(HasSubstr("the ranks make different calls")));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST(GroupOnGpus, AbortEndsBoth) {
  const auto said = run_members(2, [](Member& member) {
    member.group.barrier();
    if (member.group.rank() == 1) member.group.abort("the loss is not finite");
    float* const there = member.numbers(10, 1);
    EXPECT_THAT(message_of([&] { member.group.all_reduce(there, 10, DType::kFloat32, ReduceOp::kSum, kOnGpu); }),
                HasSubstr("rank 1 aborted the group: the loss is not finite"));
    member.group.barrier();
  });
  EXPECT_THAT(said, Each(HasSubstr("rank 1 aborted the group: the loss is not finite")));
}

TEST(GroupOnGpus, RefusesWhatNcclDoesNotHave) {
  const auto said = run_members(2, [](Member& member) {
    float* const there = member.numbers(10, 1);
    EXPECT_THAT(message_of([&] { member.group.all_reduce(there, 10, DType::kInt32, ReduceOp::kBitXor, kOnGpu); }),
                HasSubstr("backend 'nccl' does not support the reduction bit_xor; it supports sum, avg, product, min, "
                          "max, premul_sum"));
  });
  EXPECT_THAT(said, Each(kNothing));
}

// -- a world of one

TEST(GroupOfOneOnAGpu, NeedsNoNccl) {
  const auto said = run_members(1, [](Member& member) {
    ProcessGroup& group = member.group;
    EXPECT_EQ(group.backend(DeviceKind::kCuda).name(), "local");
    float *const from = member.numbers(100, 3), *const to = member.numbers(100, 0);
    const Buffer registered = group.allocate(401, DeviceKind::kCuda);
    member.device.default_stream().synchronize();
    for (std::size_t i = 0; i < 401; ++i) ASSERT_EQ(registered.data()[i], std::byte{0});
    group.all_reduce(from, to, 100, DType::kFloat32, ReduceOp::kAvg, kOnGpu);
    EXPECT_EQ(to[99], 3);
    CallOptions halved = kOnGpu;
    halved.factor = 0.5;
    group.all_reduce(from, to, 100, DType::kFloat32, ReduceOp::kPremulSum, halved);
    EXPECT_EQ(to[99], 1.5F);
    const std::vector<double> doubles = {8, 12};
    std::memcpy(to, doubles.data(), 16);
    group.all_reduce(to, 2, DType::kFloat64, ReduceOp::kPremulSum, halved);
    member.device.default_stream().synchronize();
    EXPECT_EQ(reinterpret_cast<double*>(to)[1], 6);
    const std::vector<std::size_t> counts = {7};
    group.all_to_all(from, counts, to, counts, DType::kFloat32, kOnGpu);
    EXPECT_EQ(to[6], 3);
    const std::vector<Region> regions = {{from, 5}, {to, 5}};
    group.all_reduce_coalesced(regions, DType::kFloat32, ReduceOp::kPremulSum, halved);
    EXPECT_EQ(from[4] + to[4], 3);
    group.barrier(kOnGpu);
  });
  EXPECT_THAT(said, Each(kNothing));
}

TEST(GroupOfOneOnAGpu, DoesNotWaitAndKeepsTheOrder) {
  const auto said = run_members(1, [](Member& member) {
    float *const from = member.numbers(100, 3), *const to = member.numbers(100, 0);
    member.device.hold_default_stream();
    const Work work = member.group.all_reduce_async(from, to, 100, DType::kFloat32, ReduceOp::kSum, kOnGpu);
    EXPECT_FALSE(work.done());
    const auto other = member.device.new_stream();
    work.stream_wait(*other);
    member.device.kernels().scale({to, {100}}, 2, {to, {100}}, *other);
    member.device.release_default_stream();
    other->synchronize();
    EXPECT_EQ(to[50], 6);
    EXPECT_TRUE(work.done());
  });
  EXPECT_THAT(said, Each(kNothing));
}

TEST(GroupOfOneOnAGpu, HasNcclWhenItIsAskedFor) {
  const auto said = run_members(
      1,
      [](Member& member) {
        EXPECT_EQ(member.group.backend(DeviceKind::kCpu).name(), "local");
        EXPECT_EQ(member.group.backend(DeviceKind::kCuda).name(), "nccl");
        float* const there = member.numbers(100, 3);
        member.group.all_reduce(there, 100, DType::kFloat32, ReduceOp::kSum, kOnGpu);
        EXPECT_EQ(there[99], 3);
      },
      "nccl");
  EXPECT_THAT(said, Each(kNothing));
}

// -- refusals

TEST(GroupOnTheCpu, SaysThatDataLiesOnAGpu) {
  const auto group = ProcessGroup::create({}, std::make_shared<TableStore>(), "secret", {.device = &cpu_device()});
  float number = 1;
  const auto sentence = AllOf(HasSubstr("on rank 0: the data is on a GPU, and this group's device is the CPU"),
                              HasSubstr("group->local_device()"), HasSubstr("LOCKSTEP_DEVICE=cuda"));
  EXPECT_THAT(message_of([&] { group->all_reduce(&number, 1, DType::kFloat32, ReduceOp::kSum, kOnGpu); }), sentence);
  EXPECT_THAT(message_of([&] { group->allocate(4, DeviceKind::kCuda); }), sentence);
  EXPECT_THAT(message_of([&] { group->send(&number, 1, DType::kFloat32, 0, 0, kOnGpu); }), sentence);
  EXPECT_THAT(message_of([&] { group->begin_capture(); }), sentence);
  group->barrier();
}

TEST(GroupOnTheCpu, RefusesNcclAtOnceAndSaysWhatToUse) {
  for (const int ranks : {1, 2})
    EXPECT_THAT(message_of([&] {
                  ProcessGroup::create({0, ranks, 0, ranks}, std::make_shared<TableStore>(), "secret",
                                       {.backend = "nccl", .device = &cpu_device()});
                }),
                AllOf(HasSubstr("backend 'nccl' is for GPUs, and rank 0 computes on cpu ("),
                      HasSubstr("use LOCKSTEP_BACKEND=host on the CPU")));
}

// -- graphs

struct Recorded {
  std::unique_ptr<Graph> graph;
  ProcessGroup::CapturedCalls calls;
};

// data = 2 * (the sum of all ranks' data + 1)
Recorded record(Member& member, float* data, std::size_t count) {
  Stream& stream = member.device.default_stream();
  member.group.begin_capture();
  member.device.begin_capture(stream);
  float here = 0;
  EXPECT_THAT(message_of([&] { member.group.all_reduce(&here, 1, DType::kFloat32); }),
              HasSubstr("would run once, and not with every launch"));
  EXPECT_THAT(message_of([&] { member.group.all_reduce(data, count, DType::kFloat32, ReduceOp::kSum, kOnGpu); }),
              HasSubstr("waits"));
  EXPECT_THAT(message_of([&] { member.group.allocate(64, DeviceKind::kCuda); }),
              AllOf(HasSubstr("allocate"), HasSubstr("waits")));
  const Shape shape = {static_cast<std::int64_t>(count)};
  member.device.kernels().scale({data, shape}, 1, {data, shape}, stream);
  const Work work = member.group.all_reduce_async(data, count, DType::kFloat32, ReduceOp::kSum, kOnGpu);
  if (member.group.world_size() > 1) {
    EXPECT_FALSE(work.done());
    EXPECT_THAT(message_of([&] { work.wait(); }), HasSubstr("it runs when the graph is launched"));
  }
  work.stream_wait(stream);
  member.device.kernels().scale({data, shape}, 2, {data, shape}, stream);
  auto graph = member.device.end_capture(stream);
  const auto calls = member.group.end_capture();
  return {std::move(graph), calls};
}

TEST(GraphsOfAGroup, AreComparedOnceAndWatchedOverAtEachLaunch) {
  for (const int ranks : {1, 2, 3}) {
    const auto said = run_members(ranks, [ranks](Member& member) {
      float* const data = member.numbers(100, 1);
      const auto [graph, calls] = record(member, data, 100);
      member.device.default_stream().synchronize();
      EXPECT_EQ(data[99], 1) << "nothing has run";
      float expected = 1;
      for (int launch = 0; launch < 3; ++launch) {
        graph->launch(member.device.default_stream());
        const Work work = member.group.replayed(calls);
        float* const other = member.numbers(10, 1);  // plain calls go on between launches
        member.group.all_reduce(other, 10, DType::kFloat32, ReduceOp::kSum, kOnGpu);
        work.wait();
        expected *= 2 * static_cast<float>(ranks);
        EXPECT_EQ(data[99], expected);
        EXPECT_EQ(other[9], static_cast<float>(ranks));
      }
    });
    EXPECT_THAT(said, Each(kNothing));
  }
}

TEST(GraphsOfAGroup, ThatDifferAreSaid) {
  const auto said = run_members(
      2, [](Member& member) { record(member, member.numbers(100, 1), member.group.rank() == 0 ? 100 : 99); });
  EXPECT_THAT(said, Each(AllOf(HasSubstr("the ranks make different calls"), HasSubstr("captured graph 1"))));
}

TEST(GraphsOfAGroup, MayOutliveIt) {
  const auto begin = std::chrono::steady_clock::now();
  const auto said = run_members(2, [](Member& member) {
    member.outlives_group = record(member, member.numbers(100, 1), 100).graph;
    member.group.barrier();
  });
  EXPECT_THAT(said, Each(kNothing));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

TEST(GraphsOfAGroup, ARankThatDoesNotLaunchIsMissed) {
  const auto begin = std::chrono::steady_clock::now();
  const auto said = run_members(2, [](Member& member) {
    float* const data = member.numbers(100, 1);
    const auto [graph, calls] = record(member, data, 100);
    if (member.group.rank() == 1) return;
    graph->launch(member.device.default_stream());
    member.group.replayed(calls).wait();
  });
  EXPECT_THAT(said[0], AllOf(HasSubstr("graph 1"), HasSubstr("rank 1 "), HasSubstr("left")));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10))
      << "NCCL waits for the graph, which goes with this rank";
}

}  // namespace
}  // namespace lockstep::testing
