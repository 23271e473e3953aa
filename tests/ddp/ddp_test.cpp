// DistributedDataParallel over the host backend with ranks as threads: averages, equal replicas, mismatches, unused
// parameters.
#include "lockstep/ddp/ddp.h"

#include <gtest/gtest.h>

#include <array>
#include <mutex>

#include "lockstep/autograd/engine.h"
#include "lockstep/core/error.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/loss.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/tensor/random.h"
#include "tests/ddp/ranks.h"
#include "tests/support/in_mib.h"

namespace lockstep {
namespace {

using testing::expect_all_well;
using testing::run_ranks;

struct Net : nn::Module {
  nn::Linear hidden{6, 16, {.activation = Activation::kReLU}}, out{16, 4};
  Net() {
    add("hidden", hidden);
    add("out", out);
  }
  Tensor forward(const Tensor& x) override { return out(hidden(x)); }
};

// One parameter w. The loss is the sum of w * x, so the gradient is x.
struct Weight : nn::Module {
  Tensor w = Tensor::full({1, 4}, 1);
  Weight() { add_parameter("w", w); }
  Tensor forward(const Tensor& x) override { return linear(x, w, Tensor()); }
};

class Transports : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Wire, Transports, ::testing::Values("threads", "shm", "tcp"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(Transports, DifferentDataOnEachRankIsAveragedNotSummed) {
  for (const int ranks : {1, 2, 4}) {
    expect_all_well(run_ranks(ranks, GetParam(), [&](auto group) {
      Weight model;
      DistributedDataParallel ddp(model, group);
      // Rank r contributes 2^r. The average of 1, 2, 4, 8 is exact and differs from any sum.
      const float mine = static_cast<float>(1 << group->rank());
      reshape(ddp(Tensor::full({1, 4}, mine)), {}).backward();
      const float average = static_cast<float>((1 << ranks) - 1) / static_cast<float>(ranks);
      const Tensor averaged = grad(model.w);
      for (const float value : averaged.span<float>()) EXPECT_EQ(value, average);
      EXPECT_EQ(averaged.data<float>(), reinterpret_cast<float*>(ddp.reducer().slot(0).data()))
          << "the gradient is in its bucket";
    }));
  }
}

TEST_P(Transports, ReplicasAreEqualBitForBitAfter200StepsOnRandomData) {
  std::mutex mutex;
  std::vector<std::string> hashes;
  expect_all_well(run_ranks(3, GetParam(), [&](auto group) {
    manual_seed(static_cast<std::uint64_t>(group->rank()));  // different weights on every rank; rank 0's must win
    Net model;
    DistributedDataParallel ddp(model, group, {.bucket_cap_mb = {testing::in_mib(64), testing::in_mib(256)}});
    optim::SGD sgd(ddp.parameters(), {.lr = 0.05f, .momentum = 0.9f, .weight_decay = 1e-3f});
    Philox random(17, static_cast<std::uint64_t>(group->rank()));
    for (int step = 0; step < 200; ++step) {
      const Tensor x = Tensor::empty({5, 6}), labels = Tensor::empty({5}, DType::kInt64);
      for (float& value : x.span<float>()) value = random.normal();
      for (std::int64_t& label : labels.span<std::int64_t>()) label = random.below(4);
      sgd.zero_grad();
      nn::cross_entropy(ddp(x), labels).backward();
      sgd.step();
    }
    check_replicas_equal(*group, model.named_parameters(), "weights");
    check_replicas_equal(*group, sgd.state(), "momenta");
    const std::lock_guard lock(mutex);
    hashes.push_back(hash_of(model.named_parameters()));
  }));
  ASSERT_EQ(hashes.size(), 3u);
  EXPECT_EQ(hashes[0], hashes[1]);
  EXPECT_EQ(hashes[0], hashes[2]);
}

TEST_P(Transports, TheWireIsTheRequestedOne) {
  expect_all_well(run_ranks(2, GetParam(), [&](auto group) {
    Net model;
    DistributedDataParallel ddp(model, group);
    l2_loss(ddp(Tensor::full({2, 6}, 1))).backward();
    const TransportCounters counters = group->backend().counters();
    const bool tcp = std::string(GetParam()) == "tcp";
    EXPECT_EQ(group->backend().transport(), tcp ? "tcp" : "shm");
    EXPECT_EQ(counters.tcp_bytes > 0, tcp);
    EXPECT_EQ(counters.shared_memory_bytes > 0, !tcp);
  }));
}

TEST(Replicas, ADifferenceIsReportedWithItsRank) {
  const auto failures = run_ranks(3, "shm", [](auto group) {
    const Tensor weights = Tensor::full({4}, group->rank() == 2 ? 1.5f : 1.f);
    check_replicas_equal(*group, {{"w", weights}}, "weights");
  });
  for (const std::string& failure : failures)
    EXPECT_NE(failure.find("weights of rank 2 differ from rank 0's"), std::string::npos) << failure;
}

TEST(Models, ThatDifferAreRefusedOnEveryRankWithTheDifference) {
  const auto failures = run_ranks(3, "shm", [](auto group) {
    nn::Sequential model;
    model.append_named<nn::Linear>("fc", 8, group->rank() == 1 ? 5 : 4);
    DistributedDataParallel ddp(model, group);
  });
  for (const std::string& failure : failures)
    EXPECT_NE(failure.find("rank 1 has parameter 'fc.weight' float32 (5, 8) at position 0, rank 0 has parameter "
                           "'fc.weight' float32 (4, 8)"),
              std::string::npos)
        << failure;
  const auto counts = run_ranks(2, "shm", [](auto group) {
    nn::Sequential model;
    for (int i = 0; i <= group->rank(); ++i) model.append<nn::Linear>(2, 2);
    DistributedDataParallel ddp(model, group);
  });
  for (const std::string& failure : counts) EXPECT_NE(failure.find("rank 0 has nothing"), std::string::npos) << failure;
}

TEST(Models, WithoutParametersAreRefused) {
  const auto group = ProcessGroup::create({}, std::make_shared<MemoryStore>(), "");
  nn::ReLU model;
  EXPECT_THROW(DistributedDataParallel(model, group), InvalidArgument);
}

// Two heads; rank r uses only head r.
struct TwoHeads : nn::Module {
  nn::Linear trunk{2, 2}, left{2, 2}, right{2, 2};
  int use = 0;
  TwoHeads() {
    add("trunk", trunk);
    add("left", left);
    add("right", right);
  }
  Tensor forward(const Tensor& x) override {
    return use == 0 ? left(trunk(x)) : use == 1 ? right(trunk(x)) : scale(x, 1);
  }
};

TEST(UnusedParameters, CountAsZeroOnTheRankThatDoesNotUseThem) {
  expect_all_well(run_ranks(2, "shm", [](auto group) {
    manual_seed(5);
    TwoHeads model;
    model.use = group->rank();
    DistributedDataParallel ddp(model, group, {.find_unused_parameters = true});
    optim::SGD sgd(ddp.parameters(), {.lr = 0.1f});
    for (int step = 0; step < 3; ++step) {
      sgd.zero_grad();
      l2_loss(ddp(Tensor::full({1, 2}, 1))).backward();
      EXPECT_TRUE(has_grad(model.left.weight) && has_grad(model.right.weight));
      sgd.step();
    }
    EXPECT_NE(grad(model.left.weight).template span<float>()[0], 0) << "half of what rank 0 computed";
    check_replicas_equal(*group, model.named_parameters(), "weights");
  }));
}

TEST(UnusedParameters, APassThatReachesNoneStillTakesPart) {
  expect_all_well(run_ranks(2, "shm", [](auto group) {
    TwoHeads model;
    model.use = group->rank() == 0 ? 0 : 2;
    DistributedDataParallel ddp(model, group, {.find_unused_parameters = true});
    const Tensor x = Tensor::full({1, 2}, 1);
    require_grad(x);  // else rank 1 has nothing to differentiate
    l2_loss(ddp(x)).backward();
    check_replicas_equal(*group, {{"gradient", grad(model.left.weight)}}, "gradients");
  }));
}

TEST(NoSync, AccumulatesLocallyAndTheNextPassSendsTheSum) {
  expect_all_well(run_ranks(2, "shm", [](auto group) {
    Weight model;
    DistributedDataParallel ddp(model, group);
    const auto pass = [&](float value) { reshape(ddp(Tensor::full({1, 4}, value)), {}).backward(); };
    const float mine = group->rank() == 0 ? 1.f : 3.f;
    {
      const auto local = ddp.no_sync();
      pass(mine);
      EXPECT_EQ(grad(model.w).template span<float>()[0], mine);
    }
    pass(mine);
    EXPECT_EQ(grad(model.w).template span<float>()[0], 4) << "(2 * 1 + 2 * 3) / 2";
  }));
}

TEST(Forward, TwiceBeforeOneBackwardReducesOnce) {
  expect_all_well(run_ranks(2, "shm", [](auto group) {
    Weight model;
    DistributedDataParallel ddp(model, group);
    const Tensor first = ddp(Tensor::full({1, 4}, 1)), second = ddp(Tensor::full({1, 4}, 2));
    reshape(first + second, {}).backward();
    EXPECT_EQ(grad(model.w).template span<float>()[0], 3);
  }));
}

TEST(Buffers, OfRankZeroAreSentToAllBeforeEachForward) {
  struct Counting : Weight {
    Tensor seen = Tensor::zeros({1});
    Counting() { add_buffer("seen", seen); }
    Tensor forward(const Tensor& x) override {
      if (is_training()) seen.data<float>()[0] += 1;
      return Weight::forward(x);
    }
  };
  expect_all_well(run_ranks(2, "shm", [](auto group) {
    Counting model;
    model.seen.fill(static_cast<float>(group->rank()) * 100);
    DistributedDataParallel ddp(model, group);
    EXPECT_EQ(model.seen.item(), 0) << "rank 0's at the start";
    if (group->rank() == 1) model.seen.fill(50);
    ddp(Tensor::full({1, 4}, 1));
    EXPECT_EQ(model.seen.item(), 1) << "rank 0's, then counted";
    EXPECT_EQ(model.named_buffers()[0].name, "seen");
  }));
}

// The buffers sent before a forward are usually unchanged; the previous pass must not be lost because of them.
TEST(Buffers, ThatALayerReadsMayServeTwoForwardsBeforeOneBackward) {
  struct Scaled : Weight {
    Tensor factors = Tensor::full({4, 4}, 2);
    Scaled() { add_buffer("factors", factors); }
    Tensor forward(const Tensor& x) override { return Weight::forward(linear(x, factors, Tensor())); }
  };
  for (const int ranks : {1, 2})
    expect_all_well(run_ranks(ranks, "shm", [](auto group) {
      Scaled model;
      DistributedDataParallel ddp(model, group);
      const Tensor x = Tensor::full({1, 4}, 1);
      require_grad(x);
      reshape(ddp(x) + ddp(x), {}).backward();
      EXPECT_EQ(grad(model.w).template span<float>()[0], 16);
    }));
}

TEST(Frozen, ParametersAreBroadcastButNotReduced) {
  expect_all_well(run_ranks(2, "shm", [](auto group) {
    manual_seed(static_cast<std::uint64_t>(group->rank()));
    Net model;
    require_grad(model.hidden.weight, false);
    DistributedDataParallel ddp(model, group);
    EXPECT_EQ(ddp.parameters().size(), 3u);
    check_replicas_equal(*group, model.named_parameters(), "weights");
    l2_loss(ddp(Tensor::full({2, 6}, 1))).backward();
  }));
}

TEST(Exceptions, OfAUsersHookLeaveTheWrapperUsable) {
  const auto group = ProcessGroup::create({}, std::make_shared<MemoryStore>(), "");
  Net model;
  DistributedDataParallel ddp(model, group);
  bool broken = true;
  const HookHandle hook = register_grad_hook(model.out.weight, [&](const Tensor&) {
    if (broken) throw Error("a hook that fails");
  });
  EXPECT_THROW(l2_loss(ddp(Tensor::full({2, 6}, 1))).backward(), Error);
  broken = false;
  l2_loss(ddp(Tensor::full({2, 6}, 1))).backward();
  EXPECT_FALSE(ddp.reducer().in_pass());
}

TEST(Memory, StepsDoNotAllocateFromTheSystem) {
  expect_all_well(run_ranks(1, "shm", [](auto group) {
    Net model;
    DistributedDataParallel ddp(model, group);
    optim::SGD sgd(ddp.parameters(), {.lr = 0.1f, .momentum = 0.9f});
    const Tensor x = Tensor::full({32, 6}, 1);
    std::uint64_t after_two = 0;
    for (int step = 0; step < 12; ++step) {
      sgd.zero_grad();
      l2_loss(ddp(x)).backward();
      sgd.step();
      if (step == 1) after_two = cpu_device().allocator_stats().system_allocations;
    }
    EXPECT_EQ(cpu_device().allocator_stats().system_allocations, after_two);
  }));
}

}  // namespace
}  // namespace lockstep
