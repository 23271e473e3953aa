// Operations in which the ranks' parts differ: reduce, reduce_scatter, gather, scatter, all_to_all. On every transport,
// in registered and unregistered memory, in and out of place, with every root, exactly.
#include <gtest/gtest.h>

#include <random>

#include "lockstep/core/buffer.h"
#include "tests/conformance/cases.h"
#include "tests/conformance/exact_data.h"

namespace lockstep::testing {
namespace {

constexpr std::byte kUntouched{0xa5};

// Registered or unregistered room for one send and one receive buffer of world_size parts each.
struct Room {
  std::byte* send;
  std::byte* receive;
};

class Parts : public OverBackends {
 protected:
  // Bytes of a part: several tiles if there are few ranks, and in any case several for all parts together.
  std::size_t most() const { return GetParam().ranks <= 2 ? 600007 : 200003; }
  std::vector<std::size_t> counts() const {
    const auto n = static_cast<std::size_t>(GetParam().ranks);
    return {0, 1, n - 1, n, n + 1, 13, 700, most()};
  }

  // Runs the body on all ranks with registered memory, with unregistered memory, and with memory that is registered on
  // even ranks only.
  void with_rooms(std::size_t bytes, const std::function<void(Rank&, const Room&)>& body) const {
    run_threads(spec(), [&](Rank& rank) {
      const std::size_t each = bytes * static_cast<std::size_t>(rank.ranks());
      const Buffer registered = rank.backend().allocate(2 * each);
      std::vector<std::byte> plain(2 * each);
      const Room ours{registered.data(), registered.data() + each}, theirs{plain.data(), plain.data() + each};
      body(rank, ours);
      body(rank, theirs);
      body(rank, rank.rank() % 2 == 0 ? ours : theirs);
    });
  }
};

std::vector<std::size_t> small_counts(int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  return {0, 1, n - 1, n, n + 1, 50, 3001};
}

LOCKSTEP_ARITHMETIC std::byte pattern(int from, int to, std::size_t i) {
  return static_cast<std::byte>(static_cast<std::size_t>(from) * 17 + static_cast<std::size_t>(to) * 59 + i * 5 +
                                i / 241);
}
void write(std::byte* data, int from, int to, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) data[i] = pattern(from, to, i);
}
// Returns the first wrong byte of part (from, to), or -1.
long wrong_at(const std::byte* data, int from, int to, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    if (data[i] != pattern(from, to, i)) return static_cast<long>(i);
  return -1;
}

TEST_P(Parts, GatherToEveryRoot) {
  with_rooms(most(), [this](Rank& rank, const Room& room) {
    const auto me = static_cast<std::size_t>(rank.rank());
    for (const std::size_t count : counts())
      for (int root = 0; root<rank.ranks(); root += count> 1000 ? 2 : 1)
        for (const bool in_place : {true, false}) {
          const bool is_root = rank.rank() == root;
          std::byte* send = in_place && is_root ? room.receive + me * count : room.send;
          write(send, rank.rank(), root, count);
          rank.run(OperationKind::kGather, send, is_root ? room.receive : nullptr, count, DType::kUInt8, ReduceOp::kSum,
                   root);
          for (int from = 0; is_root && from < rank.ranks(); ++from)
            ASSERT_EQ(wrong_at(room.receive + static_cast<std::size_t>(from) * count, from, root, count), -1)
                << "root " << root << " from " << from << " of " << count;
        }
  });
}

TEST_P(Parts, ScatterFromEveryRoot) {
  with_rooms(most(), [this](Rank& rank, const Room& room) {
    const auto me = static_cast<std::size_t>(rank.rank());
    for (const std::size_t count : counts())
      for (int root = 0; root<rank.ranks(); root += count> 1000 ? 2 : 1)
        for (const bool in_place : {true, false}) {
          const bool is_root = rank.rank() == root;
          for (int to = 0; is_root && to < rank.ranks(); ++to)
            write(room.send + static_cast<std::size_t>(to) * count, root, to, count);
          std::byte* receive = in_place && is_root ? room.send + me * count : room.receive;
          rank.run(OperationKind::kScatter, is_root ? room.send : nullptr, receive, count, DType::kUInt8,
                   ReduceOp::kSum, root);
          ASSERT_EQ(wrong_at(receive, root, rank.rank(), count), -1)
              << "rank " << me << " root " << root << " of " << count;
        }
  });
}

TEST_P(Parts, AllToAllInAndOutOfPlace) {
  with_rooms(most(), [this](Rank& rank, const Room& room) {
    for (const std::size_t count : counts())
      for (const bool in_place : {true, false}) {
        for (int to = 0; to < rank.ranks(); ++to)
          write(room.send + static_cast<std::size_t>(to) * count, rank.rank(), to, count);
        std::byte* receive = in_place ? room.send : room.receive;
        rank.run(OperationKind::kAllToAll, room.send, receive, count, DType::kUInt8);
        for (int from = 0; from < rank.ranks(); ++from) {
          ASSERT_EQ(wrong_at(receive + static_cast<std::size_t>(from) * count, from, rank.rank(), count), -1)
              << "rank " << rank.rank() << " from " << from << " of " << count;
          if (!in_place) {
            ASSERT_EQ(wrong_at(room.send + static_cast<std::size_t>(from) * count, rank.rank(), from, count), -1);
          }
        }
      }
  });
}

TEST_P(Parts, ReduceOfEveryTypeAndOperation) {
  with_rooms(9973 * 8, [this](Rank& rank, const Room& room) {
    std::vector<std::byte> expected(9973 * 8), sent(9973 * 8);
    int root = 0;
    for (const DType dtype : kAllTypes)
      for (const ReduceOp op : kAllOps)
        for (const std::size_t count : small_counts(rank.ranks())) {
          if (!is_defined(op, dtype) || !promises().reductions.has(op)) continue;
          root = (root + 1) % rank.ranks();
          const bool is_root = rank.rank() == root, in_place = is_root && count % 2 == 1;
          const std::size_t bytes = count * size_of(dtype);
          std::byte* receive = !is_root ? nullptr : in_place ? room.send : room.receive;
          for (std::size_t i = 0; i < count; ++i) {
            store(room.send, i, dtype, value_at(rank.rank(), rank.ranks(), i, dtype, op));
            store(expected.data(), i, dtype, expected_at(rank.ranks(), i, dtype, op));
          }
          std::copy(room.send, room.send + bytes, sent.begin());
          rank.run(OperationKind::kReduce, room.send, receive, count, dtype, op, root);
          if (is_root) {
            ASSERT_EQ(first_difference(receive, expected.data(), count, dtype), -1)
                << name_of(dtype) << " x " << count << name_of(op);
          }
          if (!in_place) {
            ASSERT_EQ(first_difference(room.send, sent.data(), count, dtype), -1)
                << "only the root's result is written";
          }
        }
  });
}

TEST_P(Parts, ReduceScatterOfEveryTypeAndOperation) {
  with_rooms(3001 * 8, [this](Rank& rank, const Room& room) {
    const auto n = static_cast<std::size_t>(rank.ranks()), me = static_cast<std::size_t>(rank.rank());
    std::vector<std::byte> expected(3001 * 8 * n);
    for (const DType dtype : kAllTypes)
      for (const ReduceOp op : kAllOps)
        for (const std::size_t count : small_counts(rank.ranks())) {
          if (!is_defined(op, dtype) || !promises().reductions.has(op)) continue;
          const std::size_t part = count * size_of(dtype);
          for (std::size_t i = 0; i < count * n; ++i) {
            store(room.send, i, dtype, value_at(rank.rank(), rank.ranks(), i, dtype, op));
            store(expected.data(), i, dtype, expected_at(rank.ranks(), i, dtype, op));
          }
          std::byte* receive = count % 2 == 1 ? room.send + me * part : room.receive;
          rank.run(OperationKind::kReduceScatter, room.send, receive, count, dtype, op);
          ASSERT_EQ(first_difference(receive, expected.data() + me * part, count, dtype), -1)
              << name_of(dtype) << " x " << count;
        }
  });
}

// Every operation once with the odd count, in bytes, so that seven ranks' parts fit.
TEST_P(Parts, LargeAndOddOfEveryOperation) {
  constexpr std::size_t kCount = kLargeAndOddBytes;
  run_threads(spec(), [](Rank& rank) {
    const auto n = static_cast<std::size_t>(rank.ranks()), me = static_cast<std::size_t>(rank.rank());
    std::vector<std::byte> send(kCount * n), receive(kCount * n);
    const int root = rank.ranks() / 2;
    const bool is_root = rank.rank() == root;
    const auto part = [](std::vector<std::byte>& data, int index) {
      return data.data() + static_cast<std::size_t>(index) * kCount;
    };
    for (int to = 0; to < rank.ranks(); ++to) write(part(send, to), rank.rank(), to, kCount);
    rank.run(OperationKind::kAllToAll, send.data(), receive.data(), kCount, DType::kUInt8);
    for (int from = 0; from < rank.ranks(); ++from)
      ASSERT_EQ(wrong_at(part(receive, from), from, rank.rank(), kCount), -1);
    rank.run(OperationKind::kAllGather, part(send, 0), receive.data(), kCount, DType::kUInt8);
    for (int from = 0; from < rank.ranks(); ++from) ASSERT_EQ(wrong_at(part(receive, from), from, 0, kCount), -1);
    std::fill(receive.begin(), receive.end(), kUntouched);
    rank.run(OperationKind::kGather, part(send, 0), is_root ? receive.data() : nullptr, kCount, DType::kUInt8,
             ReduceOp::kSum, root);
    for (int from = 0; is_root && from < rank.ranks(); ++from)
      ASSERT_EQ(wrong_at(part(receive, from), from, 0, kCount), -1);
    rank.run(OperationKind::kScatter, is_root ? send.data() : nullptr, receive.data(), kCount, DType::kUInt8,
             ReduceOp::kSum, root);
    ASSERT_EQ(wrong_at(receive.data(), root, rank.rank(), kCount), -1);
    const auto sum_at = [&](int to, std::size_t i) {
      unsigned sum = 0;
      for (int from = 0; from < rank.ranks(); ++from) sum += static_cast<unsigned>(pattern(from, to, i));
      return static_cast<std::byte>(sum);
    };
    rank.run(OperationKind::kReduceScatter, send.data(), receive.data(), kCount, DType::kUInt8);
    for (std::size_t i = 0; i < kCount; ++i) ASSERT_EQ(receive[i], sum_at(rank.rank(), i)) << "reduce_scatter at " << i;
    rank.run(OperationKind::kReduce, part(send, 0), is_root ? receive.data() : nullptr, kCount, DType::kUInt8,
             ReduceOp::kSum, root);
    for (std::size_t i = 0; is_root && i < kCount; ++i) ASSERT_EQ(receive[i], sum_at(0, i)) << "reduce at " << i;
    rank.broadcast(part(send, static_cast<int>(me)), kCount, DType::kUInt8, root);  // any memory will do
    ASSERT_EQ(wrong_at(part(send, static_cast<int>(me)), root, root, kCount), -1);
  });
}

// Random floats: for each operation, memory and transport, a sum has the bits of rank order.
TEST_P(Parts, SumsAreInRankOrderToTheBit) {
  if (!promises().sums_in_rank_order)
    GTEST_SKIP() << backend_of(GetParam().wire) << " does not promise an order of sums";
  if (!GetParam().nodes.empty()) GTEST_SKIP() << "between nodes it is another order: see nodes_test.cpp";
  const auto n = static_cast<std::size_t>(GetParam().ranks);
  constexpr std::size_t kCount = 140003;  // more than a tile, also for a part
  std::vector<std::vector<float>> inputs(n, std::vector<float>(kCount * n));
  for (std::size_t r = 0; r < n; ++r) {
    std::mt19937 random(static_cast<unsigned>(r + 1));
    std::normal_distribution<float> normal;
    for (float& value : inputs[r]) value = normal(random);
  }
  std::vector<float> expected = inputs[0];
  for (std::size_t r = 1; r < n; ++r)
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += inputs[r][i];
  with_rooms(kCount * 4, [&](Rank& rank, const Room& room) {
    const auto me = static_cast<std::size_t>(rank.rank());
    const std::vector<float>& mine = inputs[me];
    std::memcpy(room.send, mine.data(), mine.size() * 4);
    rank.run(OperationKind::kReduceScatter, room.send, room.receive, kCount, DType::kFloat32);
    EXPECT_EQ(std::memcmp(room.receive, expected.data() + me * kCount, kCount * 4), 0)
        << "reduce_scatter on rank " << me;
    const int root = rank.ranks() - 1;
    rank.run(OperationKind::kReduce, room.send, room.receive, kCount * n, DType::kFloat32, ReduceOp::kSum, root);
    if (rank.rank() == root) {
      EXPECT_EQ(std::memcmp(room.receive, expected.data(), kCount * n * 4), 0) << "reduce";
    }
  });
}

TEST_P(Parts, ManyUnderWayCompleteInOrder) {
  with_rooms(64 * 400, [](Rank& rank, const Room& room) {
    const auto n = static_cast<std::size_t>(rank.ranks());
    std::fill(room.receive, room.receive + n * 64 * 400, kUntouched);
    for (std::size_t call = 0; call < 64; ++call)
      for (int to = 0; to < rank.ranks(); ++to)
        write(room.send + (call * n + static_cast<std::size_t>(to)) * 400, rank.rank(), to, 400);
    std::vector<Work> works;
    for (std::size_t call = 0; call < 64; ++call)
      works.push_back(rank.backend().start(rank.operation(OperationKind::kAllToAll, room.send + call * n * 400,
                                                          room.receive + call * n * 400, 400, DType::kUInt8)));
    works.back().wait();
    for (std::size_t call = 0; call < 64; ++call) {
      EXPECT_TRUE(works[call].done());
      for (int from = 0; from < rank.ranks(); ++from)
        ASSERT_EQ(wrong_at(room.receive + (call * n + static_cast<std::size_t>(from)) * 400, from, rank.rank(), 400),
                  -1);
    }
  });
}

LOCKSTEP_OVER_ALL_BACKENDS(Parts, ring_cases({1, 2, 3, 4, 7}));

}  // namespace
}  // namespace lockstep::testing
