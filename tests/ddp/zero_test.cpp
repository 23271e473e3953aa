// ZeroRedundancyOptimizer compared with plain DistributedDataParallel: bitwise equal weights, 1/n of the state, and no
// more bytes.
#include "lockstep/ddp/zero.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "src/comm/flight/flight_dump.h"
#include "tests/ddp/ranks.h"
#include "tests/ddp/zero_trainee.h"
#include "tests/support/in_mib.h"
#include "tests/support/page.h"
#include "tests/support/temporary.h"

namespace lockstep::testing {
namespace {

constexpr int kSteps = 20;

struct ZeroCase {
  int ranks;
  std::string transport, optimizer;
};

class Zero : public ::testing::TestWithParam<ZeroCase> {};
INSTANTIATE_TEST_SUITE_P(All, Zero, ::testing::ValuesIn([] {
                           std::vector<ZeroCase> cases;
                           for (const auto& [optimizer, make] : zero_optimizers())
                             cases.push_back({2, "threads", optimizer});
                           for (const int ranks : {1, 4}) cases.push_back({ranks, "threads", "adamw"});
                           for (const int ranks : {2, 4}) cases.push_back({ranks, "tcp", "nadam"});
                           for (const int ranks : {3, 4}) cases.push_back({ranks, "shm", "sgd"});
                           return cases;
                         }()),
                         [](const auto& test) {
                           return test.param.optimizer + "_" + std::to_string(test.param.ranks) + "_" +
                                  test.param.transport;
                         });

TEST_P(Zero, HasTheBitsOfThePlainStepAndAShareOfTheState) {
  const auto& [ranks, transport, kind] = GetParam();
  expect_all_well(run_ranks(ranks, transport, [kind = kind](auto group) {
    ZeroTrainee plain(group, kind, false), zero(group, kind, true);
    for (int step = 0; step < kSteps; ++step) {
      plain.run_step(step);
      zero.run_step(step);
    }
    EXPECT_EQ(zero.bits(), plain.bits());
    check_replicas_equal(*group, zero.net.named_parameters(), "weights");
    std::size_t state = 0;
    for (const auto& [name, tensor] : plain.optimizer->state())
      if (name.find(".clock") == name.npos) state += tensor.bytes();
    const auto world = static_cast<std::size_t>(group->world_size());
    const std::size_t padding = 64 * plain.optimizer->state().size();
    EXPECT_LE(zero.zero->state_bytes(), state / world + padding);
    std::int64_t all = static_cast<std::int64_t>(zero.zero->state_bytes());
    group->all_reduce(std::span(&all, 1));
    EXPECT_EQ(all, static_cast<std::int64_t>(state)) << "each element has one owner";
    EXPECT_EQ(zero.optimizer->slice_holders(), group->world_size());
  }));
}

// Over shared memory a step is one pass between two barriers, and backward makes no call. Otherwise, and with loss
// scaling, buckets are scattered and weights gathered.
TEST(ZeroCalls, AreTwoBarriersAStepWhereRanksShareMemory) {
  constexpr int kRun = 3;
  for (const std::string transport : {"threads", "tcp"})
    for (const bool scales : {false, true}) {
      const std::string path = temporary("flight.json");
      expect_all_well(run_ranks(2, transport, [&](auto group) {
        ZeroSettings settings;
        settings.scales = scales;
        ZeroTrainee(group, "sgd", true, 12, settings).run(kRun);
        if (group->rank() == 0) group->dump_flight_record(path);
      }));
      const std::string record = text_of_file(path);
      std::remove(path.c_str());
      std::map<std::string, int> calls;  // by purpose
      const FlightDump dump = flight_dump_from_json(record, path);
      ASSERT_FALSE(dump.groups.empty());
      for (const FlightEntry& call : dump.groups.back().operations)
        ++calls[call.purpose];  // records of failed groups come before it
      const bool is_shared = transport == "threads" && !scales;
      SCOPED_TRACE(transport + (scales ? ", loss scaling" : ""));
      EXPECT_EQ(calls["gradients of pass"], is_shared ? kRun : 0);
      EXPECT_EQ(calls["updated parameters"], is_shared ? kRun : 0);
      EXPECT_EQ(calls["bucket slices"] == 0, is_shared);
      EXPECT_EQ(calls["weights"] == 0, is_shared);
      EXPECT_EQ(calls["bucket"], 0);
    }
}

// Sums in the order of LOCKSTEP_REDUCE_ORDER, whose orders differ from four ranks on.
TEST(ZeroOrder, IsTheSameAsInThePlainStep) {
  for (const char* const order : {"tree", "rank"}) {
    setenv("LOCKSTEP_REDUCE_ORDER", order, 1);
    const auto failures = run_ranks(5, "shm", [](auto group) {
      ZeroTrainee plain(group, "adamw", false), zero(group, "adamw", true);
      plain.run(4);
      zero.run(4);
      EXPECT_EQ(zero.bits(), plain.bits());
    });
    unsetenv("LOCKSTEP_REDUCE_ORDER");
    SCOPED_TRACE(order);
    expect_all_well(failures);
  }
}

// The bytes that leave a rank in a step: two halves of an all-reduce, and zeros that fill the last slots.
TEST(ZeroBytes, AreNoMoreThanAllReduceSends) {
  for (const int ranks : {2, 4})
    expect_all_well(run_ranks(ranks, "tcp", [](auto group) {
      const auto sent_by = [&](bool is_zero) {
        ZeroSettings settings;
        settings.options.bucket_cap_mb = {25};  // small messages are sent entirely to every rank
        ZeroTrainee trainee(group, "sgd", is_zero, 96, settings);
        trainee.run_step(0);
        group->barrier();
        const std::uint64_t before = group->backend().counters().tcp_bytes;
        trainee.run_step(1);
        return group->backend().counters().tcp_bytes - before;
      };
      const std::uint64_t plain = sent_by(false), zero = sent_by(true);
      EXPECT_GT(plain, 30000U);
      EXPECT_LE(zero, plain + 1024) << "padding and the calls' headers";
      EXPECT_GE(zero, plain - plain / 50);
    }));
}

TEST(ZeroMatrix, WorksWithTheOptionsOfTheWrapper) {
  using Choose = std::function<void(ZeroSettings&)>;
  const std::map<std::string, Choose> choices = {
      {"find_unused_parameters", [](auto& s) { s.options.find_unused_parameters = s.leaves_some = true; }},
      {"static_graph", [](auto& s) { s.options.static_graph = s.leaves_some = true; }},
      {"delayed_parameters", [](auto& s) { s.options.delayed_parameters = {"b.weight"}; }},
      {"one bucket", [](auto& s) { s.options.bucket_cap_mb = {25}; }},
      {"no_sync", [](auto& s) { s.gathers = true; }},
      {"set_weight", [](auto& s) { s.weighs = true; }},
      {"join", [](auto& s) { s.joins = true; }},
      {"loss_scaler", [](auto& s) { s.scales = true; }},
  };
  for (const auto& [name, choose] : choices) {
    SCOPED_TRACE(name);
    ZeroSettings settings;
    choose(settings);
    expect_all_well(run_ranks(2, "threads", [&settings](auto group) {
      ZeroTrainee plain(group, "adamw", false, 12, settings), zero(group, "adamw", true, 12, settings);
      plain.run(6);
      zero.run(6);
      EXPECT_EQ(zero.bits(), plain.bits());
      EXPECT_EQ(zero.scaler.skipped_steps(), settings.scales ? 1 : 0);
    }));
  }
}

// Step counts are per parameter. Those of "middle" begin later, on ranks with and without a slice of it.
TEST(ZeroCounts, AParameterWithALateFirstGradientIsUpdatedAsInThePlainStep) {
  for (const std::string kind : {"adam", "nadam"})
    for (const bool scales : {false, true}) {
      SCOPED_TRACE(kind);
      ZeroSettings settings;
      settings.options.find_unused_parameters = settings.leaves_some = true;
      settings.scales = scales;
      expect_all_well(run_ranks(3, "threads", [&settings, kind](auto group) {
        ZeroTrainee plain(group, kind, false, 12, settings), zero(group, kind, true, 12, settings);
        for (ZeroTrainee* trainee : {&plain, &zero}) {
          for (int step = 0; step < 6; ++step) trainee->run_step(step);
          trainee->net.leaves_middle = false;
          for (int step = 6; step < 9; ++step) trainee->run_step(step);
        }
        EXPECT_EQ(zero.bits(), plain.bits());
        std::vector<NamedTensor> counts;
        for (const NamedTensor& state : zero.optimizer->state())
          if (state.name.find(".clock") != state.name.npos) counts.push_back(state);
        check_replicas_equal(*group, counts, "counts of steps");
        std::vector<double> steps;
        for (const NamedTensor& count : counts)
          for (std::size_t i = 0; i < count.tensor.template span<double>().size(); i += 4)
            steps.push_back(count.tensor.template span<double>()[i]);
        const double all = settings.scales ? 8 : 9;  // one step was skipped
        EXPECT_EQ(steps, (std::vector<double>{all, 3, all, all, 3, all}));
      }));
    }
}

// The old memory of the weights is returned to the system, because nothing allocates blocks of these sizes again.
TEST(ZeroMemory, HoldsTheWeightsOnce) {
  expect_all_well(run_ranks(1, "threads", [](auto group) {
    ZeroTrainee trainee(group, "adam", false, 512);
    std::size_t weights = 0;
    for (const auto& [name, tensor] : trainee.net.named_parameters()) weights += tensor.bytes();
    const AllocatorStats before = cpu_device().allocator_stats();
    trainee.zero = std::make_unique<ZeroRedundancyOptimizer>(trainee.ddp, *trainee.optimizer);
    const AllocatorStats after = cpu_device().allocator_stats();
    EXPECT_LE(after.bytes_in_use + weights, before.bytes_in_use) << "they are in registered memory";
    EXPECT_LE(after.bytes_held + weights, before.bytes_held);
    trainee.run(2);
  }));
}

// Existing state of the optimizer is kept, in slices.
TEST(ZeroState, OfEarlierStepsIsKept) {
  expect_all_well(run_ranks(2, "threads", [](auto group) {
    ZeroTrainee plain(group, "adam", false), late(group, "adam", false);
    for (int step = 0; step < 6; ++step) {
      if (step == 3) late.zero = std::make_unique<ZeroRedundancyOptimizer>(late.ddp, *late.optimizer);
      plain.run_step(step);
      late.run_step(step);
    }
    EXPECT_EQ(late.bits(), plain.bits());
  }));
}

// A world of one continues with plain steps.
TEST(ZeroState, OfOneRankStaysWhole) {
  expect_all_well(run_ranks(1, "threads", [](auto group) {
    ZeroTrainee plain(group, "adam", false), zero(group, "adam", true);
    for (int step = 0; step < 4; ++step) {
      if (step == 2) zero.zero.reset();
      plain.run_step(step);
      zero.run_step(step);
    }
    EXPECT_EQ(zero.bits(), plain.bits());
  }));
}

}  // namespace
}  // namespace lockstep::testing
