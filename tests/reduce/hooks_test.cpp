// The comm hooks over ranks that are threads: compared with the plain average, their bytes, state, allocations and
// refusals.
#include "lockstep/reduce/hooks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/reduce/reducer.h"
#include "tests/ddp/ranks.h"
#include "tests/reduce/hook_gradients.h"

namespace lockstep {
namespace {

using ::testing::Each;
using testing::expect_all_well;
using ::testing::HasSubstr;
using testing::run_ranks;

struct Expected {
  double mean = 0, mean_magnitude = 0;
};
Expected expected(int ranks, int pass, std::size_t gradient, std::size_t i, const Source& source = number) {
  Expected all;
  for (int rank = 0; rank < ranks; ++rank) {
    const double value = source(rank, pass, gradient, i);
    all.mean += value / ranks;
    all.mean_magnitude += std::abs(value) / ranks;
  }
  return all;
}

class Hooks : public ::testing::TestWithParam<Wire> {
 protected:
  void run(const std::function<void(std::shared_ptr<ProcessGroup>)>& body) const {
    expect_all_well(run_ranks(GetParam().ranks, GetParam().transport, body));
  }
  // Runs three passes and expects averages within `tolerance(ranks, expected)`.
  void expect_averages(const std::function<CommHook()>& make,
                       const std::function<double(int, const Expected&)>& tolerance) const {
    run([&](auto group) {
      Reducer reducer(group, gradients(), {.caps = kCaps, .comm_hook = make()});
      ASSERT_EQ(reducer.buckets().size(), 2u);
      for (int pass = 0; pass < 3; ++pass) {
        const Values values = reduce(reducer, *group, pass);
        for (std::size_t g = 0; g < values.size(); ++g)
          for (std::size_t i = 0; i < values[g].size(); ++i) {
            const Expected is = expected(group->world_size(), pass, g, i);
            ASSERT_NEAR(values[g][i], is.mean, tolerance(group->world_size(), is))
                << gradients()[g].name << "[" << i << "], pass " << pass;
          }
      }
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Wires, Hooks,
                         ::testing::Values(Wire{"threads", 2}, Wire{"threads", 4}, Wire{"tcp", 2}, Wire{"tcp", 4}),
                         [](const auto& test) { return test.param.transport + std::to_string(test.param.ranks); });

// Each value, each partial sum (none exceeds the sum of magnitudes) and the average is rounded once, by half a unit in
// the last of 8 or 11 bits.
double of_bits(int bits, int ranks, const Expected& is) {
  return (ranks + 1) * std::ldexp(is.mean_magnitude, -bits) + 1e-6;
}

TEST_P(Hooks, Bf16) {
  expect_averages([] { return hooks::bf16(); }, [](int ranks, const Expected& is) { return of_bits(8, ranks, is); });
}

TEST_P(Hooks, Fp16) {
  expect_averages([] { return hooks::fp16(); }, [](int ranks, const Expected& is) { return of_bits(11, ranks, is); });
}

// Magnitudes stay below 1. The error is half a step of 1/127 for each rank's value, averaged, plus half a step for the
// average.
TEST_P(Hooks, Int8) {
  expect_averages([] { return hooks::int8({.block = 32}); }, [](int, const Expected&) { return 2.0 / 254 + 1e-6; });
}

TEST_P(Hooks, LosslessOnesAreTheAverage) {
  const auto exact = [](int ranks, const Expected& is) { return ranks * 1e-6 * (1 + is.mean_magnitude); };
  expect_averages([] { return hooks::top_k({.ratio = 1}); }, exact);
  expect_averages([] { return hooks::power_sgd({.start_step = 100}); }, exact);
  expect_averages([] { return hooks::post_local_sgd({.start_step = 100}); }, exact);
  // With full rank the product is the matrix.
  expect_averages([] { return hooks::power_sgd({.matrix_rank = 64, .start_step = 0, .min_compression = 1e-9}); },
                  [](int, const Expected&) { return 1e-4; });
}

// A mean of matrices with the same column space has rank 1.
TEST_P(Hooks, PowerSgdOfRankOneIsExactForMatricesOfRankOne) {
  const Source product = [](int rank, int pass, std::size_t g, std::size_t i) {
    const auto& shape = gradients()[g].shape;
    const std::size_t columns = shape.dims() < 2 ? 1 : gradients()[g].count / static_cast<std::size_t>(shape[0]);
    return (number(0, pass, g, i / columns) + 2) * number(rank, pass, g + 5, i % columns);
  };
  run([&](auto group) {
    Reducer reducer(group, gradients(),
                    {.caps = kCaps, .comm_hook = hooks::power_sgd({.matrix_rank = 1, .start_step = 0})});
    for (int pass = 0; pass < 3; ++pass) {
      const Values values = reduce(reducer, *group, pass, product);
      for (std::size_t g = 0; g < values.size(); ++g)
        for (std::size_t i = 0; i < values[g].size(); ++i)
          ASSERT_NEAR(values[g][i], expected(group->world_size(), pass, g, i, product).mean, 5e-5)
              << gradients()[g].name << ", pass " << pass;
    }
  });
}

// A pass's error is added later: over all passes, the sum of the applied gradients plus the mean remaining error equals
// the sum of the means.
TEST_P(Hooks, ErrorFeedbackLosesNothing) {
  const std::vector<std::function<CommHook()>> makers = {
      [] { return hooks::top_k({.ratio = 0.1}); },
      [] { return hooks::power_sgd({.matrix_rank = 2, .start_step = 0}); }};
  for (const auto& make : makers)
    run([&](auto group) {
      const CommHook hook = make();
      Reducer reducer(group, gradients(), {.caps = kCaps, .comm_hook = hook});
      constexpr int kPasses = 5;
      Values sums(gradients().size());
      for (int pass = 0; pass < kPasses; ++pass) {
        const Values values = reduce(reducer, *group, pass);
        for (std::size_t g = 0; g < values.size(); ++g) {
          sums[g].resize(values[g].size());
          for (std::size_t i = 0; i < values[g].size(); ++i) sums[g][i] += values[g][i];
        }
      }
      for (const HookState& state : hook->state()) {
        if (!state.is_each_ranks_own) continue;
        std::vector<float> error(static_cast<float*>(state.data), static_cast<float*>(state.data) + state.count);
        group->all_reduce(error.data(), error.size(), DType::kFloat32, ReduceOp::kAvg);
        for (std::size_t g = 0; g < sums.size(); ++g)
          if (state.name.ends_with("." + gradients()[g].name))
            for (std::size_t i = 0; i < error.size(); ++i) sums[g][i] += error[i];
      }
      for (std::size_t g = 0; g < sums.size(); ++g)
        for (std::size_t i = 0; i < sums[g].size(); ++i) {
          double all = 0;
          for (int pass = 0; pass < kPasses; ++pass) all += expected(group->world_size(), pass, g, i).mean;
          ASSERT_NEAR(sums[g][i], all, 1e-4) << hook->describe() << ": " << gradients()[g].name << "[" << i << "]";
        }
    });
}

TEST_P(Hooks, TopKSendsTheLargestOfEachParameter) {
  run([](auto group) {
    Reducer reducer(group, gradients(),
                    {.caps = kCaps, .comm_hook = hooks::top_k({.ratio = 0.01, .error_feedback = false})});
    // The largest element differs from rank to rank.
    const Source source = [](int rank, int, std::size_t, std::size_t i) {
      return i == static_cast<std::size_t>(rank % 3) ? -9.0f : 1.0f;
    };
    const Values values = reduce(reducer, *group, 0, source);
    const int ranks = group->world_size();
    EXPECT_FLOAT_EQ(values[4][0], -9.0f * static_cast<float>(ranks == 4 ? 2 : 1) / static_cast<float>(ranks))
        << "ranks 0 and 3";
    EXPECT_FLOAT_EQ(values[4][1], -9.0f / static_cast<float>(ranks));
    EXPECT_EQ(std::count_if(values[1].begin(), values[1].end(), [](float value) { return value != 0; }),
              std::min(ranks, 3));
  });
}

TEST_P(Hooks, OneStandsOnAnother) {
  const auto loose = [](int ranks, const Expected& is) { return of_bits(8, ranks, is); };
  expect_averages([] { return hooks::power_sgd({.start_step = 10, .next = hooks::bf16()}); }, loose);
  expect_averages([] { return hooks::post_local_sgd({.start_step = 10, .next = hooks::bf16()}); }, loose);
  const CommHook own = [](ProcessGroup& group, const GradBucket& bucket) {
    return group.all_reduce_async(bucket.buffer, bucket.count, bucket.dtype, ReduceOp::kAvg);
  };
  expect_averages([&] { return hooks::bf16(own); }, loose);
  // With factors as int8 or 16 bits and full rank, the product is close to the matrix.
  for (const auto& next : {hooks::fp16, +[](CommHook) { return hooks::int8({.block = 16}); }})
    run([&](auto group) {
      const CommHook hook =
          hooks::power_sgd({.matrix_rank = 64, .start_step = 0, .min_compression = 1e-9, .next = next({})});
      Reducer reducer(group, gradients(), {.caps = kCaps, .comm_hook = hook});
      for (int pass = 0; pass < 3; ++pass) {
        const Values values = reduce(reducer, *group, pass);
        for (std::size_t i = 0; i < values[0].size(); ++i)
          ASSERT_NEAR(values[0][i], expected(group->world_size(), pass, 0, i).mean, 0.1)
              << hook->describe() << ", pass " << pass;
        for (std::size_t i = 0; i < values[1].size(); ++i)
          ASSERT_NEAR(values[1][i], expected(group->world_size(), pass, 1, i).mean, 0.1);
      }
    });
}

// A NaN gradient must reach all ranks, in one pass only.
TEST_P(Hooks, NaNReachesAllRanksAndDoesNotStay) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::function<CommHook()>> makers = {
      [] { return hooks::bf16(); }, [] { return hooks::fp16(); }, [] { return hooks::int8(); },
      [] { return hooks::top_k({.ratio = 0.01}); }, [] { return hooks::power_sgd({.start_step = 0}); }};
  for (const auto& make : makers)
    run([&](auto group) {
      const CommHook hook = make();
      Reducer reducer(group, gradients(), {.caps = kCaps, .comm_hook = hook});
      for (int pass = 0; pass < 3; ++pass) {
        const bool is_bad = pass == 1;
        const Values values = reduce(reducer, *group, pass, [&](int rank, int, std::size_t g, std::size_t i) {
          return is_bad && rank == 1 && g != 1 && i == 2 ? nan : number(rank, pass, g, i);
        });
        const auto has_nan = [](const std::vector<float>& all) {
          return std::any_of(all.begin(), all.end(), [](float x) { return std::isnan(x); });
        };
        for (std::size_t g : {0, 2, 3, 4})
          EXPECT_EQ(has_nan(values[g]), is_bad) << hook->describe() << ", pass " << pass << ", " << g;
      }
    });
}

// -- bytes

// Returns the share of one gradient's float32 bytes that rank 0 sends in a pass.
double sent_share(const std::function<CommHook()>& make) {
  constexpr std::size_t kSide = 512;
  std::uint64_t bytes = 0;
  expect_all_well(run_ranks(2, "tcp", [&](auto group) {
    Reducer reducer(group, {{.name = "w", .count = kSide * kSide, .shape = {kSide, kSide}}},
                    {.caps = {100}, .comm_hook = make()});
    reducer.finish();
    const std::uint64_t before = group->backend().counters().tcp_bytes;
    reducer.finish();
    if (group->rank() == 0) bytes = group->backend().counters().tcp_bytes - before;
  }));
  return static_cast<double>(bytes) / (kSide * kSide * sizeof(float));
}

TEST(HookBytes, AreFewerOnTcp) {
  EXPECT_NEAR(sent_share([] { return CommHook(); }), 1, 0.01);
  EXPECT_NEAR(sent_share([] { return hooks::bf16(); }), 0.5, 0.005);
  EXPECT_NEAR(sent_share([] { return hooks::fp16(); }), 0.5, 0.005);
  EXPECT_NEAR(sent_share([] { return hooks::int8(); }), 0.25 * (1 + 4.0 / 256), 0.005);
  EXPECT_NEAR(sent_share([] { return hooks::power_sgd({.matrix_rank = 4, .start_step = 0}); }), 2 * 4 / 512.0, 0.005);
  EXPECT_NEAR(sent_share([] { return hooks::top_k({.ratio = 0.01}); }), 0.02, 0.005);
  EXPECT_EQ(sent_share([] { return hooks::no_op(); }), 0);
}

// -- memory

TEST(HookMemory, PassesAfterTheSecondAllocateNothing) {
  const std::vector<std::function<CommHook()>> makers = {
      [] { return hooks::bf16(); },
      [] { return hooks::fp16(); },
      [] { return hooks::int8(); },
      [] { return hooks::top_k(); },
      [] { return hooks::power_sgd({.start_step = 0}); },
      [] { return hooks::power_sgd({.start_step = 0, .next = hooks::bf16()}); },
      [] { return hooks::post_local_sgd({.start_step = 1}); }};
  for (const auto& make : makers)
    for (const char* transport : {"threads", "tcp"}) {
      expect_all_well(run_ranks(2, transport, [&](auto group) {
        const CommHook hook = make();
        Reducer reducer(group, gradients(), {.caps = kCaps, .comm_hook = hook});
        const auto pass = [&reducer] {
          for (std::size_t g = 0; g < gradients().size(); ++g) reducer.mark_ready(g);
          reducer.finish();
        };
        pass();
        pass();
        const Allocated before = allocated(*group);
        const std::uint64_t blocks = cpu_device().allocator_stats().system_allocations;
        for (int i = 0; i < 20; ++i) pass();
        EXPECT_EQ(allocated(*group), before) << hook->describe() << " over " << transport;
        EXPECT_EQ(cpu_device().allocator_stats().system_allocations, blocks);
      }));
    }
}

// -- state

TEST(HookState, ContinuesToTheBitInOtherBuckets) {
  const std::vector<std::function<CommHook()>> makers = {
      [] { return hooks::top_k({.ratio = 0.1}); }, [] { return hooks::power_sgd({.start_step = 1}); },
      [] { return hooks::power_sgd({.start_step = 1, .warm_start = false}); },
      [] { return hooks::post_local_sgd({.start_step = 2}); }};
  for (const auto& make : makers)
    expect_all_well(run_ranks(2, "threads", [&](auto group) {
      const CommHook first = make(), second = make();
      Reducer whole(group, gradients(), {.caps = kCaps, .comm_hook = first});
      Reducer resumed(group, gradients(), {.caps = {100000}, .comm_hook = second});
      for (int pass = 0; pass < 3; ++pass) reduce(whole, *group, pass);
      const auto saved = snapshot(first);
      const auto states = second->state();
      ASSERT_EQ(states.size(), saved.size());
      for (std::size_t s = 0; s < states.size(); ++s) std::memcpy(states[s].data, saved[s].data(), saved[s].size());
      for (int pass = 3; pass < 6; ++pass) {
        const Values there = reduce(resumed, *group, pass);
        EXPECT_EQ(there, reduce(whole, *group, pass)) << first->describe();
      }
    }));
}

// -- refusals

TEST(HookRefusals, NameThePairAndTheReason) {
  const auto refusal = [](const CommHook& hook, const std::vector<GradientInfo>& of) { return hook->refusal(of); };
  const std::vector<GradientInfo> plain = gradients(), doubles = {{"d", 4, DType::kFloat64}},
                                  halves = {{"h", 4, DType::kBFloat16}},
                                  on_gpu = {{"g", 4, DType::kFloat32, DeviceKind::kCuda}};
  using hooks::bf16, hooks::fp16, hooks::int8, hooks::no_op, hooks::power_sgd, hooks::top_k, hooks::post_local_sgd;
  EXPECT_EQ(refusal(bf16(), halves), "");
  EXPECT_EQ(refusal(power_sgd({.next = bf16()}), plain), "");
  EXPECT_EQ(refusal(power_sgd({.next = int8()}), plain), "");
  EXPECT_EQ(refusal(post_local_sgd({.next = top_k()}), plain), "");
  EXPECT_THAT(refusal(bf16(int8()), plain),
              HasSubstr("int8: it compresses float32, but receives the gradient of 'tall' as bfloat16"));
  EXPECT_THAT(refusal(bf16(top_k()), plain),
              HasSubstr("top_k (ratio 0.01, error_feedback true) keeps state by parameter"));
  EXPECT_THAT(refusal(power_sgd({.next = top_k()}), plain), HasSubstr("keeps state by parameter"));
  EXPECT_THAT(refusal(power_sgd({.next = power_sgd()}), plain), HasSubstr("keeps state by parameter"));
  EXPECT_THAT(refusal(bf16(no_op()), plain), HasSubstr("would not be averaged"));
  EXPECT_THAT(refusal(power_sgd({.next = post_local_sgd()}), plain), HasSubstr("would not be averaged"));
  EXPECT_THAT(refusal(post_local_sgd({.next = no_op()}), plain), HasSubstr("would not be averaged"));
  EXPECT_THAT(refusal(bf16(), doubles), HasSubstr("'d' is float64"));
  for (const CommHook& hook : {int8(), power_sgd(), top_k()}) {
    EXPECT_THAT(refusal(hook, doubles), HasSubstr("it compresses float32"));
    EXPECT_EQ(refusal(hook, on_gpu), "");
  }
  EXPECT_THAT(refusal(int8({.block = 20}), plain), HasSubstr("a multiple of 16"));
  EXPECT_THAT(refusal(power_sgd({.matrix_rank = 0}), plain), HasSubstr("expected 1 to 256"));
  EXPECT_THAT(refusal(power_sgd({.start_step = -1}), plain), HasSubstr("start_step -1"));
  EXPECT_THAT(refusal(top_k({.ratio = 0}), plain), HasSubstr("got ratio 0"));
  EXPECT_THAT(refusal(top_k({.ratio = 1.5}), plain), HasSubstr("got ratio 1.5"));
  EXPECT_THAT(refusal(post_local_sgd({.start_step = -1}), plain), HasSubstr("got start_step -1"));
}

TEST(HookRefusals, ReachAReducerOnAllRanks) {
  const auto failures = run_ranks(
      2, "threads", [](auto group) { Reducer(group, gradients(), {.comm_hook = hooks::bf16(hooks::int8())}); });
  EXPECT_THAT(failures, Each(HasSubstr("reducer: comm_hook int8: it compresses float32")));
}

}  // namespace
}  // namespace lockstep
