// The behaviour that all transports have in common: exact results for types, operations, sizes and numbers of ranks.
#include <gtest/gtest.h>

#include <random>

#include "lockstep/core/buffer.h"
#include "tests/conformance/cases.h"
#include "tests/conformance/exact_data.h"

namespace lockstep::testing {
namespace {

class Collectives : public OverBackends {};

std::vector<std::size_t> counts_around(int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  return {0, 1, n - 1, n, n + 1, 13, 700, 9973};
}

void check_all_reduce(Rank& rank, std::byte* data, std::size_t count, DType dtype, ReduceOp op) {
  std::vector<std::byte> expected(count * size_of(dtype));
  for (std::size_t i = 0; i < count; ++i) {
    store(data, i, dtype, value_at(rank.rank(), rank.ranks(), i, dtype, op));
    store(expected.data(), i, dtype, expected_at(rank.ranks(), i, dtype, op));
  }
  rank.all_reduce(data, count, dtype, op);
  EXPECT_EQ(first_difference(data, expected.data(), count, dtype), -1)
      << "rank " << rank.rank() << " " << name_of(dtype) << " x " << count << " " << name_of(op);
}

TEST_P(Collectives, AllReduceOfEveryTypeAndOperation) {
  run_threads(spec(), [this](Rank& rank) {
    const Buffer registered = rank.backend().allocate(9973 * 8 + 64);
    std::vector<std::byte> plain(9973 * 8);
    for (const DType dtype : kAllTypes)
      for (const ReduceOp op : kAllOps) {
        if (!is_defined(op, dtype) || !promises().reductions.has(op)) continue;
        for (const std::size_t count : counts_around(rank.ranks())) {
          check_all_reduce(rank, plain.data(), count, dtype, op);
          if (op == ReduceOp::kSum || count > 700) check_all_reduce(rank, registered.data() + 8, count, dtype, op);
        }
      }
  });
}

// The full cross product is above, with small counts. With this count, which is divisible by no power of two and no
// number of ranks, all types and operations would take minutes: so only float32, and the type that is widened for
// transfer.
TEST_P(Collectives, LargeAndOddAllReduce) {
  run_threads(spec(), [](Rank& rank) {
    const Buffer registered = rank.backend().allocate(kLargeAndOddFloats * 4);
    std::vector<std::byte> plain(kLargeAndOddFloats * 4);
    check_all_reduce(rank, registered.data(), kLargeAndOddFloats, DType::kFloat32, ReduceOp::kAvg);
    check_all_reduce(rank, plain.data(), kLargeAndOddFloats, DType::kFloat32, ReduceOp::kSum);
    check_all_reduce(rank, plain.data(), kLargeAndOddFloats, DType::kBFloat16, ReduceOp::kAvg);
  });
}

// If the ranks share memory, a store into a peer's memory is visible after a barrier; otherwise there are no addresses.
TEST_P(Collectives, PeerAddressesAreThoseOfAllRanksOrNone) {
  run_threads(spec(), [](Rank& rank) {
    constexpr std::size_t kBytes = 10000, kSkip = 100;
    const Buffer memory = rank.backend().allocate(kBytes);
    const std::vector<std::byte*> addresses = rank.backend().peer_addresses(memory.data() + kSkip, kBytes - kSkip);
    const Wire wire = GetParam().wire;
    const bool is_shared = wire == Wire::kThreads || wire == Wire::kMemfd;
    ASSERT_EQ(addresses.size(), is_shared ? static_cast<std::size_t>(rank.ranks()) : 0);
    if (!is_shared) return;
    const auto me = static_cast<std::size_t>(rank.rank());
    EXPECT_EQ(addresses[me], memory.data() + kSkip);
    for (std::byte* address : addresses) address[me] = static_cast<std::byte>(me + 1);
    rank.barrier();
    for (std::size_t peer = 0; peer < addresses.size(); ++peer)
      EXPECT_EQ(memory.data()[kSkip + peer], static_cast<std::byte>(peer + 1));
    rank.barrier();
    std::vector<std::byte> plain(kBytes);
    EXPECT_TRUE(rank.backend().peer_addresses(plain.data(), kBytes).empty()) << "not registered";
    EXPECT_TRUE(rank.backend().peer_addresses(memory.data() + kSkip, kBytes).empty()) << "not all of it";
  });
}

// In whatever order a backend sums, all ranks get the same bits, in each repetition.
TEST_P(Collectives, RandomSumsHaveTheSameBitsOnAllRanksAndInRepeats) {
  ASSERT_TRUE(promises().same_bits_on_all_ranks && promises().repeatable_bits) << "no backend of ours may do with less";
  run_threads(spec(), [](Rank& rank) {
    constexpr std::size_t kMost = 100003;
    std::mt19937 random(static_cast<unsigned>(rank.rank() + 1));
    std::normal_distribution<float> normal;
    std::vector<float> input(kMost), first(kMost), again(kMost), zeros(kMost);
    for (float& value : input) value = normal(random);
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProduct})
      for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16})
        for (const std::size_t bytes : {std::size_t{8}, std::size_t{4000}, kMost / 2 * 8}) {
          const std::size_t count = bytes / size_of(dtype);
          for (std::vector<float>* const result : {&first, &again}) {
            std::memcpy(result->data(), dtype == DType::kFloat64 ? zeros.data() : input.data(), bytes);
            if (dtype == DType::kFloat64)
              for (std::size_t i = 0; i < count; ++i) {
                const double value = input[i];
                std::memcpy(reinterpret_cast<std::byte*>(result->data()) + i * 8, &value, 8);
              }
            rank.all_reduce(result->data(), count, dtype, op);
          }
          ASSERT_EQ(std::memcmp(first.data(), again.data(), bytes), 0)
              << "repeat of " << name_of(dtype) << " x " << count << name_of(op);
          rank.broadcast(again.data(), bytes, DType::kUInt8, rank.ranks() - 1);
          ASSERT_EQ(std::memcmp(first.data(), again.data(), bytes), 0)
              << "ranks differ in " << name_of(dtype) << " x " << count;
        }
  });
}

// A diverged loss must not make replicas differ: each rank contributes a different NaN, and all get the same one.
TEST_P(Collectives, SumsOfNansHaveTheSameBitsOnAllRanks) {
  run_threads(spec(), [](Rank& rank) {
    const auto own = std::bit_cast<float>(0x7f800000u | static_cast<std::uint32_t>(rank.rank() % 2) << 31 |
                                          static_cast<std::uint32_t>(rank.rank() + 1) << 16);
    for (const std::size_t count : {2, 1001, 50003, 300007}) {
      std::vector<float> sums(count, own), of_last_rank(count);
      rank.all_reduce(sums.data(), count);
      of_last_rank = sums;
      rank.broadcast(of_last_rank.data(), count, DType::kFloat32, rank.ranks() - 1);
      ASSERT_TRUE(std::isnan(sums[0]) && std::isnan(sums[count - 1]));
      ASSERT_EQ(std::memcmp(sums.data(), of_last_rank.data(), count * 4), 0)
          << "rank " << rank.rank() << " x " << count;
    }
  });
}

// The ranks' memory may differ: registered on some, unregistered on others, or at another offset.
TEST_P(Collectives, MixedMemory) {
  run_threads(spec(), [](Rank& rank) {
    const Buffer first = rank.backend().allocate(80000), second = rank.backend().allocate(80000);
    std::vector<std::byte> plain(80000);
    check_all_reduce(rank, rank.rank() == 0 ? first.data() : plain.data(), 9973, DType::kFloat32, ReduceOp::kSum);
    check_all_reduce(rank, rank.rank() == 0 ? first.data() : second.data(), 9973, DType::kFloat64, ReduceOp::kMin);
    check_all_reduce(rank, first.data() + 64 * rank.rank() + 4, 9973, DType::kFloat32, ReduceOp::kAvg);
  });
}

TEST_P(Collectives, BroadcastFromEveryRoot) {
  run_threads(spec(), [](Rank& rank) {
    const Buffer registered = rank.backend().allocate(600000);
    std::vector<std::byte> plain(600000);
    for (std::byte* data : {registered.data(), plain.data()})
      for (const std::size_t count : {0, 1, 40, 48, 49, 3000, 70001, 600000})
        for (int root = 0; root < rank.ranks(); ++root) {
          for (std::size_t i = 0; i < count; ++i)
            data[i] = static_cast<std::byte>(rank.rank() == root ? i * 3 + i / 251 + count : 0);
          rank.broadcast(data, count, DType::kUInt8, root);
          for (std::size_t i = 0; i < count; ++i)
            if (data[i] != static_cast<std::byte>(i * 3 + i / 251 + count))
              FAIL() << "rank " << rank.rank() << " root " << root << " byte " << i;
        }
  });
}

TEST_P(Collectives, AllGatherInAndOutOfPlace) {
  run_threads(spec(), [](Rank& rank) {
    constexpr std::size_t kMost = 300001;
    const auto n = static_cast<std::size_t>(rank.ranks()), r = static_cast<std::size_t>(rank.rank());
    const Buffer registered = rank.backend().allocate(kMost * n);
    std::vector<std::byte> plain(kMost * n), own(kMost);
    const auto value = [](std::size_t owner, std::size_t i) {
      return static_cast<std::byte>(owner * 17 + i * 5 + i / 241);
    };
    for (const std::size_t count :
         {std::size_t{0}, std::size_t{1}, std::size_t{48}, std::size_t{49}, std::size_t{4097}, kMost})
      for (std::byte* receive : {registered.data(), plain.data()})
        for (const bool in_place : {true, false}) {
          std::fill(receive, receive + count * n, std::byte{0});
          std::byte* send = in_place ? receive + r * count : own.data();
          for (std::size_t i = 0; i < count; ++i) send[i] = value(r, i);
          rank.barrier();
          rank.all_gather(send, receive, count, DType::kUInt8);
          for (std::size_t owner = 0; owner < n; ++owner)
            for (std::size_t i = 0; i < count; ++i)
              if (receive[owner * count + i] != value(owner, i))
                FAIL() << "rank " << r << " of " << owner << " at " << i << " of " << count;
        }
  });
}

// The sums of these random floats depend on the order: all transports, memories and divisions must use rank order.
TEST_P(Collectives, SumsAreInRankOrderToTheBit) {
  if (!promises().sums_in_rank_order)
    GTEST_SKIP() << backend_of(GetParam().wire) << " does not promise an order of sums";
  if (!GetParam().nodes.empty()) GTEST_SKIP() << "between nodes it is another order: see nodes_test.cpp";
  constexpr std::size_t kCount = 150001;
  const int n = GetParam().ranks;
  std::vector<std::vector<float>> inputs(static_cast<std::size_t>(n), std::vector<float>(kCount));
  for (std::size_t r = 0; r < inputs.size(); ++r) {
    std::mt19937 random(static_cast<unsigned>(r + 1));
    std::normal_distribution<float> normal;
    for (float& value : inputs[r]) value = normal(random);
  }
  std::vector<float> expected(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    float sum = inputs[0][i];
    for (std::size_t r = 1; r < inputs.size(); ++r) sum += inputs[r][i];
    expected[i] = sum * (1.0f / static_cast<float>(n));
  }
  run_threads(spec(), [&](Rank& rank) {
    const Buffer registered = rank.backend().allocate(kCount * 4);
    std::vector<float> plain(kCount);
    for (float* data : {reinterpret_cast<float*>(registered.data()), plain.data()})
      for (const std::size_t piece : {std::size_t{7}, std::size_t{1001}, std::size_t{30011}, kCount}) {
        std::copy(inputs[static_cast<std::size_t>(rank.rank())].begin(),
                  inputs[static_cast<std::size_t>(rank.rank())].end(), data);
        const std::size_t end = piece == 7 ? 70 : kCount;  // small pieces: a few are enough
        for (std::size_t at = 0; at < end; at += piece)
          rank.all_reduce(data + at, std::min(piece, end - at), DType::kFloat32, ReduceOp::kAvg);
        EXPECT_EQ(std::memcmp(data, expected.data(), end * 4), 0)
            << "rank " << rank.rank() << " in pieces of " << piece;
      }
  });
}

TEST_P(Collectives, NanWinsInMinAndMax) {
  if (promises().gpu_memory) GTEST_SKIP() << "NCCL promises nothing of NaN";
  run_threads(spec(), [](Rank& rank) {
    for (int owner = 0; owner < rank.ranks(); ++owner)
      for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
        float values[3] = {1.0f, rank.rank() == owner ? std::numeric_limits<float>::quiet_NaN() : 5.0f, -2.0f};
        rank.all_reduce(values, 3, DType::kFloat32, op);
        EXPECT_EQ(values[0], 1.0f);
        EXPECT_TRUE(std::isnan(values[1]));
        EXPECT_EQ(values[2], -2.0f);
      }
  });
}

TEST_P(Collectives, AsynchronousWorkCompletesInOrder) {
  run_threads(spec(), [](Rank& rank) {
    constexpr std::size_t kCount = 5000, kCalls = 40;
    const Buffer registered = rank.backend().allocate(kCount * 4 * kCalls);
    auto* data = reinterpret_cast<float*>(registered.data());
    for (int round = 0; round < 3; ++round) {
      for (std::size_t i = 0; i < kCount * kCalls; ++i)
        data[i] = static_cast<float>(rank.rank() + static_cast<int>(i % 100));
      std::vector<Work> works;
      for (std::size_t call = 0; call < kCalls; ++call)
        works.push_back(
            rank.backend().start(rank.reduction(data + call * kCount, kCount, DType::kFloat32, ReduceOp::kSum)));
      works[kCalls / 2].wait();
      for (std::size_t call = 0; call <= kCalls / 2; ++call) EXPECT_TRUE(works[call].done());
      rank.barrier();  // a synchronous call comes after all of them
      for (std::size_t call = 0; call < kCalls; ++call) EXPECT_TRUE(works[call].done());
      const int n = rank.ranks();
      for (std::size_t i = 0; i < kCount * kCalls; ++i)
        if (data[i] != static_cast<float>(n * static_cast<int>(i % 100) + n * (n - 1) / 2))
          FAIL() << "element " << i << " is " << data[i];
    }
  });
}

// A late rank makes the others fall asleep; they must wake again.
TEST_P(Collectives, LateRanksAreWaitedFor) {
  run_threads(spec(), [](Rank& rank) {
    for (int late = 0; late < rank.ranks(); ++late) {
      if (rank.rank() == late) std::this_thread::sleep_for(milliseconds(10));
      std::int32_t one = 1;
      rank.all_reduce(&one, 1, DType::kInt32);
      EXPECT_EQ(one, rank.ranks());
    }
  });
}

TEST_P(Collectives, CountersTellTheWireAndTheBytes) {
  if (!GetParam().nodes.empty()) GTEST_SKIP() << "two wires have two formulas: see nodes_test.cpp";
  run_threads(spec(), [this](Rank& rank) {
    constexpr std::uint64_t kBytes = 7 * 64 * 1200;  // divides into whole cache lines for all tested numbers of ranks
    const auto n = static_cast<std::uint64_t>(rank.ranks());
    const Buffer registered = rank.backend().allocate(kBytes);
    const TransportCounters before = rank.backend().counters();
    rank.all_reduce(registered.data(), kBytes / 4);
    const TransportCounters after = rank.backend().counters();
    if (!promises().counts_bytes) {
      EXPECT_EQ(after.shared_memory_bytes + after.tcp_bytes, 0u);
      return;
    }
    const bool tcp = rank.backend().transport() == "tcp";
    EXPECT_EQ(after.shared_memory_bytes - before.shared_memory_bytes, tcp ? 0 : kBytes / n * (n - 1));
    EXPECT_EQ(after.tcp_bytes - before.tcp_bytes, tcp ? 2 * kBytes / n * (n - 1) : 0);
  });
}

TEST_P(Collectives, RegisteredMemoryIsZeroedAndMayOutliveTheGroup) {
  run_threads(spec(), [](Rank& rank) {
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{4096}, std::size_t{100001}}) {
      Buffer buffer = rank.backend().allocate(bytes);
      EXPECT_EQ(buffer.bytes(), bytes);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 4096, 0u);
      for (std::size_t i = 0; i < bytes; ++i)
        if (buffer.data()[i] != std::byte{0}) FAIL() << "byte " << i;
    }
    const Buffer kept = rank.backend().allocate(4096);
    rank.barrier();
    rank.leave();
    std::fill(kept.data(), kept.data() + 4096, std::byte{1});
  });
}

LOCKSTEP_OVER_ALL_BACKENDS(Collectives, ring_cases({1, 2, 3, 4, 7}));

}  // namespace
}  // namespace lockstep::testing
