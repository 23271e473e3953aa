// Which passes are reduced: with and without no_sync(), over tied, frozen and unused parameters, and with a hook in the
// middle.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "lockstep/autograd/engine.h"
#include "lockstep/ddp/ddp.h"
#include "lockstep/nn/layers.h"
#include "tests/ddp/ranks.h"
#include "tests/support/in_mib.h"
#include "tests/support/log_lines.h"

namespace lockstep {
namespace {

using testing::expect_all_well;
using testing::run_ranks;

// Two weights. The result is x * a, x * b, or x * a + x * b, so a gradient is x.
struct Pair : nn::Module {
  Tensor a = Tensor::full({1, 1}, 1), b = Tensor::full({1, 1}, 1);
  bool use_a = true, use_b = true;
  Pair() {
    add_parameter("a", a);
    add_parameter("b", b);
  }
  Tensor forward(const Tensor& x) override {
    if (use_a && use_b) return linear(x, a, Tensor()) + linear(x, b, Tensor());
    return linear(x, use_a ? a : b, Tensor());
  }
};

Tensor loss_of(DistributedDataParallel& ddp, float x) { return reshape(ddp(Tensor::full({1, 1}, x)), {}); }
float gradient(const Tensor& leaf) { return grad(leaf).item(); }

// Rank 0 has 1, rank 1 has 3: sums and averages are exact and differ.
float own_value(const ProcessGroup& group) { return group.rank() == 0 ? 1.F : 3.F; }

TEST(Passes, GradientsOfAPassUnderNoSyncAreAveragedWithTheNextOne) {
  expect_all_well(run_ranks(2, "shm", [](auto group) {
    Pair model;
    DistributedDataParallel ddp(model, group);
    {
      const auto local = ddp.no_sync();
      loss_of(ddp, own_value(*group)).backward();
    }
    model.use_b = false;
    loss_of(ddp, 8 * own_value(*group)).backward();
    EXPECT_EQ(gradient(model.a), (9 * 1 + 9 * 3) / 2);
    EXPECT_EQ(gradient(model.b), (1 + 3) / 2) << "kept, not zeroed";
  }));
}

TEST(Passes, NoSyncAppliesToBackwardNotToForward) {
  expect_all_well(run_ranks(2, "shm", [](auto group) {
    Pair model;
    DistributedDataParallel ddp(model, group);
    const Tensor outside = loss_of(ddp, own_value(*group));
    const TransportCounters before = group->backend().counters();
    Tensor inside;
    {
      const auto local = ddp.no_sync();
      outside.backward();
      EXPECT_EQ(gradient(model.a), own_value(*group));
      inside = loss_of(ddp, own_value(*group));
    }
    EXPECT_EQ(group->backend().counters().shared_memory_bytes, before.shared_memory_bytes);
    inside.backward();
    EXPECT_EQ(gradient(model.a), 2 * (1 + 3) / 2);
    EXPECT_EQ(gradient(model.b), 2 * (1 + 3) / 2);
  }));
}

TEST(Passes, NoSyncNests) {
  expect_all_well(run_ranks(2, "shm", [](auto group) {
    Pair model;
    DistributedDataParallel ddp(model, group);
    const auto outer = ddp.no_sync();
    { const auto inner = ddp.no_sync(); }
    loss_of(ddp, own_value(*group)).backward();
    EXPECT_EQ(gradient(model.a), own_value(*group));
  }));
}

TEST(Passes, TwoLossesInARowAreTwoPassesWhoseAveragesAdd) {
  expect_all_well(run_ranks(2, "shm", [](auto group) {
    Pair model;
    DistributedDataParallel ddp(model, group);
    const Tensor first = loss_of(ddp, own_value(*group)), second = loss_of(ddp, 4 * own_value(*group));
    first.backward();
    EXPECT_EQ(gradient(model.a), 2);
    second.backward();
    EXPECT_EQ(gradient(model.a), 10);
    clear_grad(model.a);
    clear_grad(model.b);
    loss_of(ddp, own_value(*group)).backward();
    EXPECT_EQ(gradient(model.a), 2) << "cleared: overwritten, not added to";
  }));
}

TEST(Passes, AStaleGradientIsNotSentAgain) {
  expect_all_well(run_ranks(2, "shm", [](auto group) {
    Pair model;
    DistributedDataParallel ddp(model, group, {.find_unused_parameters = true});
    loss_of(ddp, own_value(*group)).backward();
    EXPECT_EQ(gradient(model.b), 2);
    clear_grad(model.a);
    clear_grad(model.b);
    model.use_b = group->rank() == 0;  // rank 1's slot still holds 2
    loss_of(ddp, own_value(*group)).backward();
    EXPECT_EQ(gradient(model.b), 0.5F);
    EXPECT_TRUE(has_grad(model.b));
  }));
}

TEST(Passes, ACommHookReplacesTheReduction) {
  expect_all_well(run_ranks(2, "shm", [](auto group) {
    Pair model;
    const CommHook doubled_sum = [](ProcessGroup& all, const GradBucket& bucket) {
      auto* values = static_cast<float*>(bucket.buffer);
      for (std::size_t i = 0; i < bucket.count; ++i) values[i] *= 2;
      return all.all_reduce_async(values, bucket.count, bucket.dtype, ReduceOp::kSum);
    };
    DistributedDataParallel ddp(model, group, {.comm_hook = doubled_sum});
    loss_of(ddp, own_value(*group)).backward();
    EXPECT_EQ(gradient(model.a), 2 * 1 + 2 * 3);
  }));
}

// The other ranks must not wait until their deadline.
TEST(Passes, AHookThatThrowsOnOneRankEndsTheGroupForAll) {
  const auto failures = run_ranks(4, "shm", [](auto group) {
    Pair model;
    const CommHook hook = [](ProcessGroup& all, const GradBucket& bucket) {
      if (all.rank() == 2) throw std::length_error("the codebook is full");
      return all.all_reduce_async(bucket.buffer, bucket.count, bucket.dtype, ReduceOp::kAvg);
    };
    DistributedDataParallel ddp(model, group, {.comm_hook = hook});
    loss_of(ddp, own_value(*group)).backward();
  });
  for (const std::string& text : failures) EXPECT_THAT(text, ::testing::HasSubstr("the codebook is full"));
  EXPECT_THAT(
      failures[0],
      ::testing::HasSubstr("rank 2 aborted the group: the comm hook defined by the program failed in bucket 0 ('b'"));
}

// Work that the hook queued still runs, on memory that may be freed when the exception is caught.
TEST(Passes, WorkOfAFailedHookHasEndedWhenItsExceptionIsCaught) {
  for (const int ranks : {1, 2})
    expect_all_well(run_ranks(ranks, "tcp", [](auto group) {
      Pair model;
      std::atomic<bool> has_begun{false}, is_computing{false};
      const CommHook hook = [&](ProcessGroup& all, const GradBucket&) -> Work {
        all.compute_async([&](Stream&) {
          is_computing = true;
          has_begun = true;
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
          is_computing = false;
        });
        while (!has_begun) std::this_thread::yield();
        throw Error("no memory for factors");
      };
      DistributedDataParallel ddp(model, group, {.comm_hook = hook});
      EXPECT_THROW(loss_of(ddp, own_value(*group)).backward(), Error);
      EXPECT_FALSE(is_computing);
    }));
}

TEST(Passes, AHookThatSendsAnotherSizeOnOneRankIsAMismatchOnAll) {
  const auto failures = run_ranks(2, "shm", [](auto group) {
    Pair model;
    const CommHook hook = [](ProcessGroup& all, const GradBucket& bucket) {
      return all.all_reduce_async(bucket.buffer, bucket.count - (all.rank() == 1 ? 1 : 0), bucket.dtype,
                                  ReduceOp::kAvg);
    };
    DistributedDataParallel ddp(model, group, {.comm_hook = hook});
    loss_of(ddp, own_value(*group)).backward();
  });
  for (const std::string& text : failures) EXPECT_THAT(text, ::testing::HasSubstr("float32 x 31"));
}

// One hook forgets the reduction, the other does not wait for its end.
TEST(Passes, AHookThatLeavesOtherValuesOnARankIsFoundInTheFirstPass) {
  const CommHook forgets = [](ProcessGroup&, const GradBucket&) { return Work(); };
  const CommHook keeps_its_own = [](ProcessGroup& all, const GradBucket& bucket) {
    const Work sum = all.all_reduce_async(bucket.buffer, bucket.count, bucket.dtype);
    return sum.then(
        [values = static_cast<float*>(bucket.buffer), &all](Stream&) { values[0] += static_cast<float>(all.rank()); });
  };
  for (const CommHook& hook : {forgets, keeps_its_own}) {
    const auto failures = run_ranks(2, "shm", [&](auto group) {
      Pair model;
      DistributedDataParallel ddp(model, group, {.comm_hook = hook});
      loss_of(ddp, own_value(*group)).backward();
    });
    for (const std::string& text : failures)
      EXPECT_THAT(text, ::testing::HasSubstr("the values of rank 1 differ from those of rank 0 after the reduction"));
  }
}

// Each gradient has its own bucket, whose call a backend's thread may begin at once.
TEST(Passes, AUsersHookRunsBeforeTheGradientIsSentWheneverItWasRegistered) {
  expect_all_well(run_ranks(2, "shm", [](auto group) {
    Pair model;
    std::vector<float> seen;
    const auto note = [&](const Tensor& leaf) {
      seen.push_back(grad(leaf).item());
      grad(leaf).fill(10 * seen.back());
    };
    const HookHandle before = register_grad_hook(model.a, note);
    DistributedDataParallel ddp(model, group, {.bucket_cap_mb = {testing::in_mib(4), testing::in_mib(4)}});
    const HookHandle after = register_grad_hook(model.a, note), of_b = register_grad_hook(model.b, note);
    const float own = own_value(*group);
    for (int step = 0; step < 20; ++step) {
      clear_grad(model.a);
      clear_grad(model.b);
      seen.clear();
      loss_of(ddp, own).backward();
      std::sort(seen.begin(), seen.end());
      EXPECT_EQ(seen, (std::vector<float>{own, own, 10 * own})) << "this rank's value, in step " << step;
      EXPECT_EQ(gradient(model.a), 100 * 2);
      EXPECT_EQ(gradient(model.b), 10 * 2);
    }
  }));
}

// Pass numbers are per process: two threads that each run their first pass do not have the same number.
TEST(Passes, EachStepMayRunOnAThreadOfItsOwn) {
  expect_all_well(run_ranks(2, "shm", [](auto group) {
    Pair model;
    DistributedDataParallel ddp(model, group);
    for (int step = 1; step <= 6; ++step) {
      std::string error;
      std::thread([&] {
        try {
          clear_grad(model.a);
          clear_grad(model.b);
          loss_of(ddp, static_cast<float>(step) * own_value(*group)).backward();
        } catch (const std::exception& failure) {
          error = failure.what();
        }
      }).join();
      ASSERT_EQ(error, "") << "step " << step;
      EXPECT_EQ(gradient(model.a), static_cast<float>(2 * step));
      EXPECT_EQ(gradient(model.b), static_cast<float>(2 * step));
    }
    EXPECT_FALSE(ddp.reducer().in_pass());
  }));
}

TEST(Passes, TiedWeightsHaveOneGradient) {
  struct Tied : Pair {
    Tied() { add_parameter("same", a); }
  };
  expect_all_well(run_ranks(2, "shm", [](auto group) {
    Tied model;
    DistributedDataParallel ddp(model, group);
    EXPECT_EQ(ddp.parameters().size(), 2U);
    loss_of(ddp, own_value(*group)).backward();
    EXPECT_EQ(gradient(model.a), 2);
  }));
}

TEST(Passes, AParameterThatIsFrozenLaterCountsAsUnused) {
  expect_all_well(run_ranks(2, "shm", [](auto group) {
    Pair model;
    DistributedDataParallel ddp(model, group);
    require_grad(model.b, false);
    loss_of(ddp, own_value(*group)).backward();
    EXPECT_EQ(gradient(model.a), 2);
  }));
}

TEST(Passes, ATapeMayOutliveItsWrapper) {
  expect_all_well(run_ranks(2, "shm", [](auto group) {
    Pair model;
    Tensor loss;
    {
      DistributedDataParallel ddp(model, group);
      loss = loss_of(ddp, own_value(*group));
    }
    const float own = own_value(*group);
    group->barrier();  // if a rank left while others reduce, it would be lost to them
    group.reset();     // gradients keep their buckets alive
    loss.backward();
    EXPECT_EQ(gradient(model.a), own);
  }));
}

}  // namespace
}  // namespace lockstep
