// ZeroRedundancyOptimizer against plain DistributedDataParallel: the same weights to the bit, 1/n of the state, no more
// bytes.
#include "lockstep/ddp/zero.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/optim/clip.h"
#include "lockstep/reduce/hooks.h"
#include "src/comm/flight/flight_dump.h"
#include "tests/ddp/ranks.h"
#include "tests/ddp/zero_trainee.h"
#include "tests/support/in_mib.h"
#include "tests/support/page.h"
#include "tests/support/temporary.h"

namespace lockstep::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

// An optimizer as a user may write one, whose update reads a tensor's norm.
struct NormedSgd : optim::Optimizer {
  explicit NormedSgd(std::vector<NamedTensor> parameters)
      : Optimizer(std::move(parameters),
                  {.kind = "NormedSgd", .lr = 0.1F, .weight_decay = 0, .loss_scaler = nullptr, .elementwise = false}) {}
  void update(std::span<const UpdateTensor>, const GroupStep&, const KernelTable&, Stream&) override {}
};

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
    EXPECT_EQ(zero.optimizer->slice_ranks(), group->world_size());
  }));
}

// Over shared memory a step is one pass between two barriers, and backward makes no call; elsewhere, and under loss
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
        ++calls[call.purpose];  // behind those of groups that have failed
      const bool is_shared = transport == "threads" && !scales;
      SCOPED_TRACE(transport + (scales ? ", loss scaling" : ""));
      EXPECT_EQ(calls["gradients of pass"], is_shared ? kRun : 0);
      EXPECT_EQ(calls["updated parameters"], is_shared ? kRun : 0);
      EXPECT_EQ(calls["bucket slices"] == 0, is_shared);
      EXPECT_EQ(calls["weights"] == 0, is_shared);
      EXPECT_EQ(calls["bucket"], 0);
    }
}

// Sums as LOCKSTEP_REDUCE_ORDER has them, which from four ranks on are others.
TEST(ZeroOrder, IsThatOfThePlainStep) {
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

// What leaves a rank in a step: two halves of an all-reduce, and zeros that fill the last slots.
TEST(ZeroBytes, AreNoMoreThanThoseOfAllReduces) {
  for (const int ranks : {2, 4})
    expect_all_well(run_ranks(ranks, "tcp", [](auto group) {
      const auto sent_by = [&](bool is_zero) {
        ZeroSettings settings;
        settings.options.bucket_cap_mb = {25};  // small messages go to every rank whole
        ZeroTrainee trainee(group, "sgd", is_zero, 96, settings);
        trainee.run_step(0);
        group->barrier();
        const std::uint64_t before = group->backend().counters().tcp_bytes;
        trainee.run_step(1);
        return group->backend().counters().tcp_bytes - before;
      };
      const std::uint64_t plain = sent_by(false), zero = sent_by(true);
      EXPECT_GT(plain, 30000U);
      EXPECT_LE(zero, plain + 1024) << "padding and the heads of calls";
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

// Counts of steps are the parameters': those of "middle" begin later, on ranks with a slice of it and without.
TEST(ZeroCounts, AParameterWhoseFirstGradientComesLateMovesAsByThePlainStep) {
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
        const double all = settings.scales ? 8 : 9;  // a step was skipped
        EXPECT_EQ(steps, (std::vector<double>{all, 3, all, all, 3, all}));
      }));
    }
}

TEST(ZeroMistakes, AreRefusedOnAllRanksWithTheReason) {
  const auto refused = [](const std::function<void(std::shared_ptr<ProcessGroup>)>& body) {
    return run_ranks(2, "threads", body);
  };
  EXPECT_THAT(refused([](auto group) {
                ZeroNet net(12);
                DistributedDataParallel ddp(net, group, {.comm_hook = hooks::no_op()});
                optim::SGD sgd(ddp.parameters());
                const ZeroRedundancyOptimizer zero(ddp, sgd);
              }),
              Each(HasSubstr("the comm_hook no_op leaves each rank its own gradients")));
  EXPECT_THAT(refused([](auto group) {
                ZeroNet net(12);
                DistributedDataParallel ddp(net, group, {.comm_hook = hooks::post_local_sgd()});
                optim::SGD sgd(ddp.parameters());
                const ZeroRedundancyOptimizer zero(ddp, sgd);
              }),
              Each(HasSubstr("post_local_sgd (start_step 100, subgroup none) leaves each rank its own gradients")));
  EXPECT_THAT(refused([](auto group) {
                ZeroNet net(12);
                DistributedDataParallel ddp(net, group);
                std::vector<NamedTensor> some = ddp.parameters();
                if (group->rank() == 1) some.pop_back();
                optim::SGD sgd(some);
                const ZeroRedundancyOptimizer zero(ddp, sgd);
              }),
              Each(HasSubstr("rank 1: parameter 'b.bias' is not in the optimizer SGD")));
  EXPECT_THAT(refused([](auto group) {
                ZeroNet net(12), other(12);
                DistributedDataParallel ddp(net, group);
                optim::SGD sgd(ddp.parameters());
                sgd.add_group({.parameters = {{"other", other.parameters().front()}}});
                const ZeroRedundancyOptimizer zero(ddp, sgd);
              }),
              Each(HasSubstr("the optimizer's parameter 'other' is none that the wrapper averages")));
  EXPECT_THAT(refused([](auto group) {
                ZeroNet net(12);
                DistributedDataParallel ddp(net, group);
                NormedSgd lars(ddp.parameters());
                const ZeroRedundancyOptimizer zero(ddp, lars);
              }),
              Each(HasSubstr("NormedSgd is not elementwise")));
  EXPECT_THAT(refused([](auto group) {
                ZeroNet net(12);
                DistributedDataParallel ddp(net, group);
                optim::SGD sgd(ddp.parameters());
                optim::Adam adam(ddp.parameters());
                optim::Optimizer& own = group->rank() == 0 ? static_cast<optim::Optimizer&>(sgd) : adam;
                const ZeroRedundancyOptimizer zero(ddp, own);
              }),
              Each(HasSubstr("have different optimizers: rank 1 has optimizer Adam")));
  EXPECT_THAT(refused([](auto group) {
                ZeroSettings settings;
                settings.scales = group->rank() == 0;
                const ZeroTrainee trainee(group, "sgd", true, 13, settings);
              }),
              Each(HasSubstr("have different optimizers: rank 1 has optimizer SGD with 2 groups, no loss_scaler")));
  EXPECT_THAT(refused([](auto group) {
                ZeroTrainee trainee(group, "sgd", true);
                optim::SGD second(trainee.ddp.parameters());
                const ZeroRedundancyOptimizer zero(trainee.ddp, second);
              }),
              Each(HasSubstr("a wrapper has one at a time")));
}

TEST(ZeroMistakes, OfStepsThrow) {
  const auto failures = [](const std::function<void(ZeroTrainee&)>& body) {
    return run_ranks(2, "threads", [&](auto group) {
      ZeroTrainee trainee(group, "sgd", true);
      body(trainee);
    });
  };
  EXPECT_THAT(failures([](auto& trainee) {
                trainee.backward(0);
                optim::clip_grad_norm(trainee.ddp.parameters(), 1);
              }),
              Each(HasSubstr(
                  "no rank has the whole average. Call zero_grad() first; to clip by the norm, set .max_grad_norm")));
  EXPECT_THAT(failures([](auto& trainee) {
                trainee.backward(0);
                optim::clip_grad_value(trainee.ddp.parameters(), 1);
              }),
              Each(HasSubstr("no rank has the whole average")));
  EXPECT_THAT(failures([](auto& trainee) {
                trainee.backward(0);
                trainee.backward(1);
              }),
              Each(HasSubstr("call zero_grad() before each backward")));
  EXPECT_THAT(failures([](auto& trainee) {
                const auto local = trainee.ddp.no_sync();
                trainee.backward(0);
                trainee.optimizer->step();
              }),
              Each(HasSubstr("of a backward under no_sync()")));
  EXPECT_THAT(failures([](auto& trainee) {
                trainee.backward(0);
                trainee.zero.reset();
                trainee.optimizer->step();
              }),
              Each(HasSubstr("this rank has slices of the state alone")));
  EXPECT_THAT(failures([](auto& trainee) {
                trainee.optimizer->add_group({.parameters = {{"more", ZeroNet(2).parameters().front()}}});
              }),
              Each(HasSubstr("add_group: ZeroRedundancyOptimizer has taken the optimizer over")));
  EXPECT_THAT(failures([](auto& trainee) { trainee.ddp.join([] {}); }),
              Each(HasSubstr("set .after_step to the optimizer's step()")));
}

// A rank alone leaves a step out, or forgets its gradients before it: the next step's barriers tell, over every wire.
TEST(ZeroMistakes, OfOneRankAloneAreMismatchesOnAll) {
  const auto texts_of = [](const std::string& transport, const std::function<void(ZeroTrainee&, bool is_odd)>& body) {
    return run_ranks(2, transport, [&](auto group) {
      ZeroTrainee trainee(group, "sgd", true);
      trainee.run(2);
      trainee.optimizer->zero_grad();
      trainee.backward(2);
      body(trainee, group->rank() == 1);
      trainee.optimizer->step();
      group->barrier();
    });
  };
  for (const char* const transport : {"threads", "tcp"}) {
    SCOPED_TRACE(transport);
    EXPECT_THAT(texts_of(transport,
                         [](auto& trainee, bool is_odd) {
                           if (is_odd) trainee.optimizer->zero_grad();
                         }),
                Each(HasSubstr("the ranks make different calls")));
    EXPECT_THAT(texts_of(transport,
                         [](auto& trainee, bool is_odd) {
                           if (!is_odd) return;
                           trainee.optimizer->zero_grad();
                           trainee.backward(3);
                         }),
                Each(HasSubstr("the ranks make different calls")));
  }
}

// The others wait for it before they touch a weight, and are told.
TEST(ZeroFaults, ARankThatGivesUpBeforeItsStepEndsTheOthers) {
  const auto texts = run_ranks(2, "threads", [](auto group) {
    ZeroTrainee trainee(group, "sgd", true);
    trainee.run(2);
    trainee.optimizer->zero_grad();
    trainee.backward(2);
    if (group->rank() == 1) return group->abort("a bad batch");
    trainee.optimizer->step();
  });
  EXPECT_EQ(texts[1], "");
  EXPECT_THAT(texts[0], HasSubstr("rank 1 aborted the group: a bad batch"));
  EXPECT_THAT(texts[0], HasSubstr("gradients of pass"));
}

// What the weights leave goes back to the system: nothing asks for blocks of their sizes again.
TEST(ZeroMemory, HasTheWeightsOnce) {
  expect_all_well(run_ranks(1, "threads", [](auto group) {
    ZeroTrainee trainee(group, "adam", false, 512);
    std::size_t weights = 0;
    for (const auto& [name, tensor] : trainee.net.named_parameters()) weights += tensor.bytes();
    const AllocatorStats before = cpu_device().allocator_stats();
    trainee.zero = std::make_unique<ZeroRedundancyOptimizer>(trainee.ddp, *trainee.optimizer);
    const AllocatorStats after = cpu_device().allocator_stats();
    EXPECT_LE(after.bytes_in_use + weights, before.bytes_in_use) << "they lie in registered memory";
    EXPECT_LE(after.bytes_held + weights, before.bytes_held);
    trainee.run(2);
  }));
}

// The state that an optimizer has got before is kept, in slices.
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

// A world of one goes on by plain steps.
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
