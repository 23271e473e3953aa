// Calls whose data a single count does not describe: parts of unequal length, and several buffers in one call. Also
// sums of values that each rank multiplies first.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <span>

#include "lockstep/core/buffer.h"
#include "src/comm/call/continuation.h"
#include "tests/conformance/cases.h"
#include "tests/conformance/exact_data.h"

namespace lockstep::testing {
namespace {

class Layouts : public OverBackends {};

std::int32_t value(int from, int to, std::size_t i) {
  return from * 1000003 + to * 5003 + static_cast<std::int32_t>(i);
}

std::size_t sum_of(const std::vector<std::size_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

Operation gather_v(Rank& rank, const void* send, void* receive, std::vector<std::size_t> counts) {
  auto layout = std::make_shared<Layout>();
  layout->receive_counts = std::move(counts);
  Operation call =
      rank.operation(OperationKind::kAllGatherV, send, receive, sum_of(layout->receive_counts), DType::kInt32);
  call.signature.layout = hash_of(*layout);
  call.layout = std::move(layout);
  return call;
}

Operation exchange_v(Rank& rank, const void* send, std::vector<std::size_t> sends, void* receive,
                     std::vector<std::size_t> receives) {
  auto layout = std::make_shared<Layout>();
  layout->send_counts = std::move(sends);
  layout->receive_counts = std::move(receives);
  Operation call = rank.operation(OperationKind::kAllToAllV, send, receive, 0, DType::kInt32);
  call.signature.layout = hash_of(*layout);
  call.layout = std::move(layout);
  return call;
}

Operation coalesced(Rank& rank, OperationKind kind, std::vector<Region> regions, DType dtype, ReduceOp op, int root) {
  auto layout = std::make_shared<Layout>();
  layout->regions = std::move(regions);
  std::size_t all = 0;
  for (const Region& region : layout->regions) all += region.count;
  Operation call = rank.operation(kind, nullptr, nullptr, all, dtype);
  call.signature.op = op;
  call.signature.root = root;
  call.signature.layout = hash_of(*layout);
  call.layout = std::move(layout);
  return call;
}

// Returns a list of counts: all zero, only one rank, all different, large and odd.
std::vector<std::size_t> counts_of(int ranks, int list) {
  std::vector<std::size_t> counts(static_cast<std::size_t>(ranks));
  for (std::size_t r = 0; r < counts.size(); ++r)
    counts[r] = list == 0   ? 0
                : list == 1 ? (r == counts.size() - 1 ? 9 : 0)
                : list == 2 ? r * 7 % 5
                : list == 3 ? 1000 * r + 1
                            : 70001 * (r % 3) + 13;
  return counts;
}

TEST_P(Layouts, AllGatherOfUnequalParts) {
  run_threads(spec(), [](Rank& rank) {
    const auto me = static_cast<std::size_t>(rank.rank());
    const std::size_t most = sum_of(counts_of(rank.ranks(), 4)) + 30000;
    const Buffer registered = rank.backend().allocate(most * 4);
    std::vector<std::int32_t> plain(most), own(most);
    for (auto* receive : {reinterpret_cast<std::int32_t*>(registered.data()), plain.data()})
      for (int list = 0; list < 5; ++list)
        for (const bool in_place : {true, false}) {
          const auto counts = counts_of(rank.ranks(), list);
          std::int32_t* send =
              in_place ? receive + std::accumulate(counts.begin(), counts.begin() + rank.rank(), std::size_t{0})
                       : own.data();
          for (std::size_t i = 0; i < counts[me]; ++i) send[i] = value(rank.rank(), list, i);
          rank.backend().run(gather_v(rank, send, receive, counts));
          const std::int32_t* at = receive;
          for (int from = 0; from < rank.ranks(); at += counts[static_cast<std::size_t>(from++)])
            for (std::size_t i = 0; i < counts[static_cast<std::size_t>(from)]; ++i)
              ASSERT_EQ(at[i], value(from, list, i)) << "list " << list << " from " << from << " at " << i;
        }
  });
}

// Rank a sends a * 3 + b * b elements (times `scale`) to rank b, and nothing if a + b is a multiple of four.
std::size_t sent(int a, int b, std::size_t scale) {
  return (a + b) % 4 == 0 ? 0 : static_cast<std::size_t>(a * 3 + b * b) * scale + static_cast<std::size_t>(b);
}

TEST_P(Layouts, AllToAllOfUnequalParts) {
  run_threads(spec(), [](Rank& rank) {
    for (const std::size_t scale : {0, 1, 17, 9001}) {
      std::vector<std::size_t> sends, receives;
      for (int peer = 0; peer < rank.ranks(); ++peer) {
        sends.push_back(sent(rank.rank(), peer, scale));
        receives.push_back(sent(peer, rank.rank(), scale));
      }
      std::vector<std::int32_t> out, in(sum_of(receives));
      for (int peer = 0; peer < rank.ranks(); ++peer)
        for (std::size_t i = 0; i < sends[static_cast<std::size_t>(peer)]; ++i)
          out.push_back(value(rank.rank(), peer, i));
      rank.backend().run(exchange_v(rank, out.data(), sends, in.data(), receives));
      std::size_t at = 0;
      for (int from = 0; from < rank.ranks(); ++from)
        for (std::size_t i = 0; i < receives[static_cast<std::size_t>(from)]; ++i)
          ASSERT_EQ(in[at++], value(from, rank.rank(), i)) << "from " << from << " at " << i;
    }
  });
}

TEST_P(Layouts, CountsThatDisagreeEndTheGroupOnAllRanks) {
  if (GetParam().ranks == 1) return;
  const auto n = static_cast<std::size_t>(GetParam().ranks);
  const auto exchanges = outcomes_of_threads(spec(), [n](Rank& rank) {
    std::vector<std::int32_t> out(100), in(100);
    std::vector<std::size_t> sends(n, 2), receives(n, 2);
    if (rank.rank() == 1) receives[0] = 3;
    rank.backend().run(exchange_v(rank, out.data(), sends, in.data(), receives));
  });
  for (const Outcome& outcome : exchanges) {
    EXPECT_EQ(outcome.kind, "mismatch") << outcome.text;
    EXPECT_NE(outcome.text.find("rank 0 sends 2 elements to rank 1, which expects 3"), std::string::npos)
        << outcome.text;
  }
  const auto gathers = outcomes_of_threads(spec(), [n](Rank& rank) {
    std::vector<std::int32_t> out(100), in(100);
    std::vector<std::size_t> counts(n, 2);
    counts[0] += rank.rank() == 1 ? 1 : 0;
    counts[1] -= rank.rank() == 1 ? 1 : 0;  // the same number in total
    rank.backend().run(gather_v(rank, out.data(), in.data(), counts));
  });
  for (const Outcome& outcome : gathers) EXPECT_EQ(outcome.kind, "mismatch") << outcome.text;
}

// As a process group chains them: Work::then() on a call, and one more call after it, issued at once.
TEST_P(Layouts, AContinuationAndItsCallKeepTheirPlaceAmongTheOthers) {
  run_threads(spec(), [](Rank& rank) {
    const int ranks = rank.ranks();
    for (int round = 0; round < 5; ++round) {
      std::vector<float> first(1000, 1), second(1000, 0), third(10, 1);
      const Work sum =
          rank.backend().start(rank.reduction(first.data(), first.size(), DType::kFloat32, ReduceOp::kSum));
      Operation follower = rank.operation(OperationKind::kBarrier, nullptr, nullptr, 0, DType::kUInt8);
      Operation call = follower;
      call.signature = rank.reduction(second.data(), second.size(), DType::kFloat32, ReduceOp::kMax).signature;
      call.signature.sequence = follower.signature.sequence;
      call.send = call.receive = second.data();
      follower.chained = {[&](Stream&) {
                            for (std::size_t i = 0; i < second.size(); ++i)
                              second[i] = first[i] + static_cast<float>(rank.rank());
                            running_continuation()->has_made_it = true;  // as the group does
                            return rank.backend().start(call);
                          },
                          &rank, true};
      const Work followed = rank.backend().start_chained(follower, sum);
      Operation behind = rank.reduction(third.data(), third.size(), DType::kFloat32, ReduceOp::kSum);
      const Work last = rank.backend().start(behind);
      followed.wait();
      last.wait();
      for (const float value : second) ASSERT_EQ(value, static_cast<float>(ranks + ranks - 1));
      for (const float value : third) ASSERT_EQ(value, static_cast<float>(ranks));
    }
    rank.barrier();
  });
}

// Checks for the same bits on all ranks, and for the expected values except for rounding.
void expect_alike_on_all_ranks(Rank& rank, std::span<const float> got, const std::vector<float>& expected) {
  for (std::size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got[i], expected[i], 1e-6F * std::abs(expected[i])) << "at " << i;
  std::vector<float> all(got.size() * static_cast<std::size_t>(rank.ranks()));
  rank.backend().run(rank.operation(OperationKind::kAllGather, got.data(), all.data(), got.size(), DType::kFloat32));
  for (std::size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], got[i % got.size()]) << "rank " << i / got.size();
}

// Checks the bits if the backend guarantees them, otherwise the values.
TEST_P(Layouts, CoalescedCallsGiveTheBitsOfSingleOnes) {
  if (GetParam().nodes.find('c') != std::string::npos)
    GTEST_SKIP() << "between three nodes the order of a sum depends on its place in the message";
  run_threads(spec(), [promised = promises().coalesced_equals_single](Rank& rank) {
    const std::vector<std::size_t> counts = {0,    5,    1,    4000, 8192, 8193, 3,    100003, 0,    17,
                                             2000, 8000, 8000, 8000, 8000, 8000, 8000, 8000,   8000, 1};
    const std::size_t all = sum_of(counts);
    const Buffer registered = rank.backend().allocate(all * 4);
    std::vector<float> alone(all), plain(all);
    for (std::size_t i = 0; i < all; ++i)
      alone[i] = 1.0f / static_cast<float>(1 + i % 977 + static_cast<std::size_t>(rank.rank()) * 31);
    for (float* together : {plain.data(), reinterpret_cast<float*>(registered.data())}) {
      std::vector<float> expected = alone;
      std::copy(alone.begin(), alone.end(), together);
      std::vector<Region> regions;
      std::size_t at = 0;
      for (const std::size_t count : counts) {
        regions.push_back({together + at, count});
        rank.all_reduce(expected.data() + at, count, DType::kFloat32, ReduceOp::kAvg);
        at += count;
      }
      rank.backend()
          .start(coalesced(rank, OperationKind::kAllReduce, regions, DType::kFloat32, ReduceOp::kAvg, -1))
          .wait();
      if (promised)
        EXPECT_EQ(std::memcmp(together, expected.data(), all * 4), 0);
      else
        expect_alike_on_all_ranks(rank, {together, all}, expected);
      const int root = rank.ranks() - 1;
      for (std::size_t i = 0; i < all; ++i) together[i] = rank.rank() == root ? static_cast<float>(i) : -1.0f;
      rank.backend().run(coalesced(rank, OperationKind::kBroadcast, regions, DType::kFloat32, ReduceOp::kSum, root));
      for (std::size_t i = 0; i < all; ++i) ASSERT_EQ(together[i], static_cast<float>(i));
    }
    rank.backend().run(coalesced(rank, OperationKind::kAllReduce, {}, DType::kFloat32, ReduceOp::kSum, -1));
  });
}

// 1 / 3 in 16 bits is itself up to 0.2 % off. Averages must not be biased: their rounding errors go in both directions.
TEST_P(Layouts, AveragesOf16BitsAreNotBiased) {
  run_threads(spec(), [](Rank& rank) {
    constexpr std::size_t kCount = 4099;
    for (const auto& [dtype, precision] : {std::pair(DType::kBFloat16, 0x1p-8), std::pair(DType::kFloat16, 0x1p-11)}) {
      std::vector<std::byte> single(kCount * 2);
      const auto value_of = [](int r, std::size_t i) {
        return 101 + static_cast<int>((i * 37 + static_cast<std::size_t>(r) * 11) % 100);
      };
      for (std::size_t i = 0; i < kCount; ++i) store(single.data(), i, dtype, value_of(rank.rank(), i));
      std::vector<std::byte> together = single;
      rank.all_reduce(single.data(), kCount, dtype, ReduceOp::kAvg);
      const std::vector<Region> regions = {{together.data(), 1000}, {together.data() + 2000, kCount - 1000}};
      rank.backend().run(coalesced(rank, OperationKind::kAllReduce, regions, dtype, ReduceOp::kAvg, -1));
      for (const auto& averages : {single, together}) {
        double error = 0;
        for (std::size_t i = 0; i < kCount; ++i) {
          double expected = 0;
          for (int r = 0; r < rank.ranks(); ++r) expected += static_cast<double>(value_of(r, i)) / rank.ranks();
          error += (load_half(averages.data(), i, dtype) / expected - 1) / kCount;
        }
        EXPECT_LT(std::abs(error), precision / 4) << name_of(dtype);
      }
    }
  });
}

// Rank r's factor is a power of two, so that products and sums of small integers are exact in all types.
LOCKSTEP_ARITHMETIC double factor_of(int rank) { return rank % 2 == 0 ? 0.5 : 2; }
LOCKSTEP_ARITHMETIC int value_before_factor(int rank, std::size_t i) {
  return 2 * (static_cast<int>(i % 5) - rank % 3);
}
LOCKSTEP_ARITHMETIC int premultiplied_sum(int ranks, std::size_t i) {
  int sum = 0;
  for (int rank = 0; rank < ranks; ++rank) sum += static_cast<int>(value_before_factor(rank, i) * factor_of(rank));
  return sum;
}

void check_premultiplied(Rank& rank, OperationKind kind, DType dtype, std::size_t count, bool in_place) {
  const std::size_t parts = kind == OperationKind::kReduceScatter ? static_cast<std::size_t>(rank.ranks()) : 1;
  const std::size_t all = count * parts, element = size_of(dtype);
  std::vector<std::byte> send(all * element), receive(all * element), expected(all * element);
  for (std::size_t i = 0; i < all; ++i) {
    store(send.data(), i, dtype, value_before_factor(rank.rank(), i));
    store(expected.data(), i, dtype, premultiplied_sum(rank.ranks(), i));
  }
  const std::vector<std::byte> before = send;
  const int root = rank.ranks() / 2;
  const bool has_result = kind != OperationKind::kReduce || rank.rank() == root;
  const std::size_t own =
      parts > 1 || kind == OperationKind::kReduceScatter ? static_cast<std::size_t>(rank.rank()) * count * element : 0;
  std::byte* result = in_place ? send.data() + own : receive.data();
  Operation call = rank.operation(kind, send.data(), has_result ? result : nullptr, count, dtype);
  call.signature.op = ReduceOp::kPremulSum;
  call.signature.root = kind == OperationKind::kReduce ? root : -1;
  call.factor = factor_of(rank.rank());
  rank.backend().run(call);
  if (has_result) {
    EXPECT_EQ(first_difference(result, expected.data() + own, count, dtype), -1)
        << name_of(kind) << " " << name_of(dtype) << " x " << count;
  }
  if (!in_place || !has_result) {
    EXPECT_EQ(send, before);
  }
}

TEST_P(Layouts, PremultipliedSums) {
  constexpr std::size_t kLarge = kSanitized ? 30011 : 150001;  // reduce_scatter has that many for each rank
  run_threads(spec(), [](Rank& rank) {
    for (const DType dtype : kAllTypes) {
      if (is_integer(dtype)) continue;
      for (const OperationKind kind :
           {OperationKind::kAllReduce, OperationKind::kReduce, OperationKind::kReduceScatter})
        for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{11}, std::size_t{9973}, kLarge})
          for (const bool in_place : {true, false})
            if (count < kLarge || dtype == DType::kFloat32) check_premultiplied(rank, kind, dtype, count, in_place);
    }
  });
}

LOCKSTEP_OVER_ALL_BACKENDS(Layouts, ring_cases({1, 2, 3, 4, 7}));

}  // namespace
}  // namespace lockstep::testing
