// Ranks of several nodes: the bytes on each transport, and the order in which values are added.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <random>
#include <thread>

#include "lockstep/core/buffer.h"
#include "src/comm/host/reduce/ring_plan.h"
#include "tests/conformance/cases.h"
#include "tests/conformance/forked_ranks.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Nodes : public ::testing::TestWithParam<Case> {
 protected:
  GroupSpec spec() const { return {.wire = GetParam().wire, .ranks = GetParam().ranks, .nodes = GetParam().nodes}; }
  host::NodeLayout layout() const {
    std::vector<int> leaders;
    for (const char node : GetParam().nodes) leaders.push_back(static_cast<int>(GetParam().nodes.find(node)));
    return host::NodeLayout(leaders);
  }
};

TransportCounters difference(const TransportCounters& after, const TransportCounters& before) {
  return {after.shared_memory_bytes - before.shared_memory_bytes, after.tcp_bytes - before.tcp_bytes};
}

TEST_P(Nodes, BytesOnEachWireAreWhatTheFormulaSays) {
  const host::NodeLayout layout = this->layout();
  const auto nodes = static_cast<std::uint64_t>(layout.nodes()), rails = static_cast<std::uint64_t>(layout.rails());
  // Divides into blocks of 512 KiB, and these into rails, chunks and cache lines.
  const std::uint64_t blocks = 3, block = host::RingPlan::kBlockBytes, bytes = blocks * block;
  ASSERT_EQ(block % (rails * 64), 0u) << "this layout has no even slices";
  run_threads(spec(), [&](Rank& rank) {
    EXPECT_EQ(rank.backend().transport(), "hierarchical");
    const Buffer registered = rank.backend().allocate(bytes);
    std::vector<float> plain(bytes / 4);
    const auto local = static_cast<std::uint64_t>(layout.local_rank_of(rank.rank()));
    const auto local_ranks = static_cast<std::uint64_t>(layout.size_of_node(layout.node_of(rank.rank())));
    for (void* data : {static_cast<void*>(registered.data()), static_cast<void*>(plain.data())}) {
      const TransportCounters before = rank.backend().counters();
      rank.all_reduce(data, bytes / 4);
      const TransportCounters took = difference(rank.backend().counters(), before);
      const std::uint64_t slice = local < rails ? bytes / rails : 0;
      if (nodes == 2) {
        EXPECT_EQ(took.tcp_bytes, slice) << "2 (2-1)/2 of the rail's slice";
      } else {
        const std::uint64_t lines = slice / 64;  // chunks are full cache lines
        EXPECT_NEAR(static_cast<double>(took.tcp_bytes),
                    static_cast<double>(2 * (nodes - 1) * lines * 64) / static_cast<double>(nodes),
                    static_cast<double>(blocks * 2 * (nodes - 1) * 64));
      }
      EXPECT_EQ(took.shared_memory_bytes, slice * (local_ranks - 1)) << "the other local ranks' values, once";
    }
    const TransportCounters before = rank.backend().counters();
    rank.all_reduce(plain.data(), 100);
    const TransportCounters small = difference(rank.backend().counters(), before);
    EXPECT_EQ(small.tcp_bytes, local == 0 ? (nodes - 1) * 400 : 0)
        << "a small message: the node's sum to every other node";
    EXPECT_EQ(small.shared_memory_bytes, local == 0 ? (local_ranks - 1) * 400 : 400);
  });
}

// All rails of all nodes together: exactly 2 (K-1)/K of the message leaves a node.
TEST_P(Nodes, AllNodesTogetherSendTwiceKMinusOneMessages) {
  std::atomic<std::uint64_t> sent{0};
  const std::size_t count = 1000003;
  run_threads(spec(), [&](Rank& rank) {
    std::vector<float> data(count);
    rank.barrier();
    const std::uint64_t before = rank.backend().counters().tcp_bytes;
    rank.all_reduce(data.data(), count);
    sent += rank.backend().counters().tcp_bytes - before;
  });
  EXPECT_EQ(sent.load(), 2 * static_cast<std::uint64_t>(layout().nodes() - 1) * count * 4);
}

// Once around the ring: every node but the last sends the message, whatever its size and its root.
TEST_P(Nodes, ABroadcastAndAReduceSendOneMessageFromEveryNodeButTheLast) {
  for (const std::size_t count : {std::size_t{100}, std::size_t{300007}}) {
    std::atomic<std::uint64_t> sent{0};
    run_threads(spec(), [&](Rank& rank) {
      const Buffer registered = rank.backend().allocate(count * 4);
      std::vector<float> plain(count), result(count);
      for (float* data : {reinterpret_cast<float*>(registered.data()), plain.data()})
        for (int root = 0; root < rank.ranks(); ++root) {
          std::fill(data, data + count, static_cast<float>(1 + rank.rank()));
          const std::uint64_t before = rank.backend().counters().tcp_bytes;
          rank.run(OperationKind::kReduce, data, rank.rank() == root ? result.data() : nullptr, count, DType::kFloat32,
                   ReduceOp::kSum, root);
          rank.broadcast(result.data(), count, DType::kFloat32, root);
          sent += rank.backend().counters().tcp_bytes - before;
          const auto expected = static_cast<float>(rank.ranks() * (rank.ranks() + 1) / 2);
          for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(result[i], expected) << "root " << root << " at " << i;
          ASSERT_EQ(data[count - 1], static_cast<float>(1 + rank.rank())) << "a reduce does not change its input";
        }
    });
    const auto calls = static_cast<std::uint64_t>(2 * 2 * GetParam().ranks);
    EXPECT_EQ(sent.load(), calls * static_cast<std::uint64_t>(layout().nodes() - 1) * count * 4) << count;
  }
}

// Every part is sent once to every other node, or once from every other node.
TEST_P(Nodes, AnAllGatherAndAReduceScatterSendEachPartOnceAroundTheRing) {
  constexpr std::size_t kPart = 70001;
  std::atomic<std::uint64_t> sent{0};
  run_threads(spec(), [&](Rank& rank) {
    const auto n = static_cast<std::size_t>(rank.ranks()), me = static_cast<std::size_t>(rank.rank());
    std::vector<float> parts(kPart * n), own(kPart, static_cast<float>(1 + me));
    const std::uint64_t before = rank.backend().counters().tcp_bytes;
    rank.all_gather(own.data(), parts.data(), kPart, DType::kFloat32);
    for (std::size_t i = 0; i < parts.size(); ++i) ASSERT_EQ(parts[i], static_cast<float>(1 + i / kPart)) << "at " << i;
    rank.run(OperationKind::kReduceScatter, parts.data(), own.data(), kPart, DType::kFloat32);
    for (std::size_t i = 0; i < kPart; ++i) ASSERT_EQ(own[i], static_cast<float>(n * (1 + me))) << "at " << i;
    sent += rank.backend().counters().tcp_bytes - before;
  });
  EXPECT_EQ(sent.load(), 2 * static_cast<std::uint64_t>(GetParam().ranks) *
                             static_cast<std::uint64_t>(layout().nodes() - 1) * kPart * 4);
}

// The order in the documentation (ring_plan.h), element by element, from the plan's own geometry.
std::vector<float> expected_sums(const host::NodeLayout& layout, const std::vector<std::vector<float>>& inputs,
                                 std::size_t count) {
  const auto sum_of_node = [&](int node, std::size_t i) {
    const auto& members = layout.members(node);
    float sum = inputs[static_cast<std::size_t>(members[0])][i];
    for (std::size_t m = 1; m < members.size(); ++m) sum += inputs[static_cast<std::size_t>(members[m])][i];
    return sum;
  };
  std::vector<float> sums(count);
  const int nodes = layout.nodes();
  if (nodes == 2 || count * 4 <= 8192) {  // sums of nodes, in node order
    for (std::size_t i = 0; i < count; ++i) {
      sums[i] = sum_of_node(0, i);
      for (int node = 1; node < nodes; ++node) sums[i] += sum_of_node(node, i);
    }
    return sums;
  }
  for (int rail = 0; rail < layout.rails(); ++rail) {
    const host::RingPlan plan({count, DType::kFloat32, nodes, 0, layout.rails(), rail});
    for (std::size_t block = 0; block < plan.blocks(); ++block)
      for (int chunk = 0; chunk < nodes; ++chunk)
        for (std::size_t i = plan.chunk(block, chunk).begin; i < plan.chunk(block, chunk).end; ++i) {
          sums[i] = sum_of_node((chunk + 1) % nodes, i);
          for (int hop = 2; hop <= nodes; ++hop)
            for (const int rank : layout.members((chunk + hop) % nodes))
              sums[i] += inputs[static_cast<std::size_t>(rank)][i];
        }
  }
  return sums;
}

TEST_P(Nodes, SumsAreInTheDocumentedOrderToTheBit) {
  constexpr std::size_t kMost = 300007;
  const int n = GetParam().ranks;
  std::vector<std::vector<float>> inputs(static_cast<std::size_t>(n), std::vector<float>(kMost));
  for (std::size_t r = 0; r < inputs.size(); ++r) {
    std::mt19937 random(static_cast<unsigned>(r + 1));
    std::normal_distribution<float> normal;
    for (float& value : inputs[r]) value = normal(random);
  }
  for (const std::size_t count : {std::size_t{1}, std::size_t{2048}, std::size_t{2049}, std::size_t{30011}, kMost}) {
    const std::vector<float> expected = expected_sums(layout(), inputs, count);
    run_threads(spec(), [&](Rank& rank) {
      const auto& mine = inputs[static_cast<std::size_t>(rank.rank())];
      const Buffer registered = rank.backend().allocate(count * 4);
      std::vector<float> plain(count);
      for (float* data : {reinterpret_cast<float*>(registered.data()), plain.data()}) {
        std::copy_n(mine.begin(), count, data);
        rank.all_reduce(data, count);
        EXPECT_EQ(std::memcmp(data, expected.data(), count * 4), 0) << "rank " << rank.rank() << " of " << count;
        std::copy_n(mine.begin(), count, data);
        rank.all_reduce(data, count, DType::kFloat32, ReduceOp::kAvg);
        for (std::size_t i = 0; i < count; ++i)
          ASSERT_EQ(data[i], expected[i] * (1.0f / static_cast<float>(n))) << "rank " << rank.rank() << " at " << i;
      }
    });
  }
}

// A large reduce begins at the node after the root's and ends at the root's.
TEST_P(Nodes, AReduceAddsNodeByNodeAndTheRootsLast) {
  constexpr std::size_t kCount = 30011;
  const int n = GetParam().ranks;
  const host::NodeLayout layout = this->layout();
  std::vector<std::vector<float>> inputs(static_cast<std::size_t>(n), std::vector<float>(kCount));
  for (std::size_t r = 0; r < inputs.size(); ++r) {
    std::mt19937 random(static_cast<unsigned>(r + 1));
    std::normal_distribution<float> normal;
    for (float& value : inputs[r]) value = normal(random);
  }
  run_threads(spec(), [&](Rank& rank) {
    std::vector<float> result(kCount);
    for (int root = 0; root < n; ++root) {
      rank.run(OperationKind::kReduce, inputs[static_cast<std::size_t>(rank.rank())].data(),
               rank.rank() == root ? result.data() : nullptr, kCount, DType::kFloat32, ReduceOp::kSum, root);
      if (rank.rank() != root) continue;
      std::vector<int> order;
      for (int hop = 1; hop <= layout.nodes(); ++hop)
        for (const int member : layout.members((layout.node_of(root) + hop) % layout.nodes())) order.push_back(member);
      for (std::size_t i = 0; i < kCount; ++i) {
        float sum = inputs[static_cast<std::size_t>(order[0])][i];
        for (std::size_t term = 1; term < order.size(); ++term) sum += inputs[static_cast<std::size_t>(order[term])][i];
        ASSERT_EQ(result[i], sum) << "root " << root << " at " << i;
      }
    }
  });
}

// Some of a node's ranks, or some nodes, have unregistered memory; the others are not affected.
TEST_P(Nodes, NodesMayDifferInTheirMemory) {
  run_threads(spec(), [](Rank& rank) {
    constexpr std::size_t kCount = 400009;
    const Buffer registered = rank.backend().allocate(kCount * 4);
    std::vector<float> plain(kCount);
    auto* const in_segment = reinterpret_cast<float*>(registered.data());
    for (int odd_one = 0; odd_one < rank.ranks(); ++odd_one) {
      float* const data = rank.rank() == odd_one ? plain.data() : in_segment;
      for (std::size_t i = 0; i < kCount; ++i)
        data[i] = static_cast<float>(i % 64 + static_cast<std::size_t>(rank.rank()));
      rank.all_reduce(data, kCount);
      const auto n = static_cast<std::size_t>(rank.ranks());
      for (std::size_t i = 0; i < kCount; ++i)
        ASSERT_EQ(data[i], static_cast<float>(n * (i % 64) + n * (n - 1) / 2)) << "at " << i;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ring, Nodes,
                         ::testing::Values(Case{Wire::kNodeThreads, 4, "aabb"}, Case{Wire::kNodeThreads, 6, "aabbcc"},
                                           Case{Wire::kNodeThreads, 3, "aab"}, Case{Wire::kNodeThreads, 4, "abba"},
                                           Case{Wire::kNodes, 4, "aabb"}, Case{Wire::kNodeThreads, 6, "aabbcd"}),
                         name_of_case);

// -- faults that involve several nodes; those within one are in faults_test.cpp

class NodeFaults : public ::testing::TestWithParam<Wire> {
 protected:
  GroupSpec spec(const char* nodes) const {
    return {.wire = GetParam(), .ranks = static_cast<int>(std::strlen(nodes)), .nodes = nodes};
  }
};

INSTANTIATE_TEST_SUITE_P(Ring, NodeFaults, ::testing::Values(Wire::kNodeThreads, Wire::kNodes),
                         [](const auto& tested) { return std::string(name_of(tested.param)); });

using Call = std::function<void(Rank&, float*)>;

// After a good call, the ranks of node b make a different call than those of node a: all get both sides, with the
// group's numbers.
void expect_mismatch(const GroupSpec& spec, const Call& in_a, const Call& in_b, const std::string& a_says,
                     const std::string& b_says) {
  const auto start = std::chrono::steady_clock::now();
  const auto outcomes = outcomes_of_threads(spec, [&](Rank& rank) {
    std::vector<float> data(20000);
    rank.all_reduce(data.data(), data.size());
    (spec.nodes[static_cast<std::size_t>(rank.rank())] == 'a' ? in_a : in_b)(rank, data.data());
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.kind, "mismatch") << outcome.text;
    EXPECT_THAT(outcome.text, AllOf(HasSubstr("the ranks make different calls: rank "), HasSubstr(": " + a_says),
                                    HasSubstr(": " + b_says)));
    EXPECT_EQ(outcome.text, outcomes[0].text);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST_P(NodeFaults, NodesThatMakeDifferentCallsAreNamedOnAllRanks) {
  const Call large = [](Rank& rank, float* data) { rank.all_reduce(data, 20000); };
  const Call small = [](Rank& rank, float* data) { rank.all_reduce(data, 100); };
  const Call other = [](Rank& rank, float* data) { rank.broadcast(data, 100, DType::kFloat32, 0); };
  const Call barrier = [](Rank& rank, float*) { rank.barrier(); };
  const char* const large_says = "all_reduce #2 (float32 x 20000, sum)";
  const char* const small_says = "all_reduce #2 (float32 x 100, sum)";
  const char* const other_says = "broadcast #2 (float32 x 100, root 0)";
  for (const char* nodes : {"aabb", "aab", "aabbaa"}) {
    expect_mismatch(spec(nodes), large, small, large_says, small_says);
    expect_mismatch(spec(nodes), other, large, other_says, large_says);
    expect_mismatch(spec(nodes), small, barrier, small_says, "barrier #2");
    expect_mismatch(spec(nodes), barrier, other, "barrier #2", other_says);
  }
}

TEST_P(NodeFaults, OneRankThatMakesAnotherCallIsNamedByItsNode) {
  const auto outcomes = outcomes_of_threads(spec("aabb"), [&](Rank& rank) {
    std::vector<float> data(20000);
    rank.all_reduce(data.data(), data.size());
    rank.all_reduce(data.data(), rank.rank() == 3 ? 19999 : 20000);
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.kind, "mismatch") << outcome.text;
    EXPECT_THAT(outcome.text, HasSubstr("rank 3: all_reduce #2 (float32 x 19999, sum)"));
  }
}

// Ranks that wait for a waiting rank must not report that one as late.
TEST_P(NodeFaults, TheRankThatIsLateIsNamedAndNotOneThatWaitsForIt) {
  const std::vector<Call> calls = {[](Rank& rank, float* data) { rank.all_reduce(data, 1); },
                                   [](Rank& rank, float* data) { rank.all_reduce(data, 50000); },
                                   [](Rank& rank, float* data) {
                                     rank.run(OperationKind::kGather, data, data, 7, DType::kFloat32, ReduceOp::kSum,
                                              1);
                                   },
                                   [](Rank& rank, float*) { rank.barrier(); }};
  for (const Call& call : calls)
    for (const int late : {1, 3}) {
      std::atomic<int> gave_up = 0;
      const auto outcomes = outcomes_of_threads(spec("aabb"), [&](Rank& rank) {
        std::vector<float> data(50000);
        rank.all_reduce(data.data(), data.size());
        rank.set_timeout(milliseconds(700));
        if (rank.rank() == late)
          for (int i = 0; i < 20'000 && gave_up < 3; ++i) std::this_thread::sleep_for(milliseconds(1));
        try {
          call(rank, data.data());
        } catch (const Error&) {
          ++gave_up;
          throw;
        }
      });
      for (const Outcome& outcome : outcomes) {
        EXPECT_EQ(outcome.kind, "timeout") << outcome.text;
        EXPECT_THAT(outcome.text,
                    AllOf(HasSubstr("for rank " + std::to_string(late) + " (pid "), HasSubstr("did not arrive")));
      }
    }
}

TEST_P(NodeFaults, AnAbortReachesRanksThatWaitInAllPlaces) {
  const auto outcomes = outcomes_of_threads(spec("aabb"), [](Rank& rank) {
    std::vector<float> data(20000);
    rank.barrier();
    if (rank.rank() == 3) {
      std::this_thread::sleep_for(milliseconds(50));
      rank.backend().abort("the loss is not finite");
      return;
    }
    rank.all_reduce(data.data(), data.size());
  });
  for (const int rank : {0, 1, 2}) {
    const Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
    EXPECT_EQ(outcome.kind, "peer lost") << outcome.text;
    EXPECT_THAT(outcome.text, HasSubstr("rank 3 aborted the group: the loss is not finite"));
  }
}

// During a message, whichever rank dies: a leader, a rank that is on no rail, one of the other node.
TEST(NodeDeaths, AKilledRankIsNamedByAllNodesWithinTwoSeconds) {
  for (const int victim : {0, 2, 4}) {
    const auto reports =
        run_processes({.wire = Wire::kNodes, .ranks = 5, .nodes = "aaabb"}, [&](Rank& rank, RankReport& report) {
          const Buffer registered = rank.backend().allocate(4000000);
          std::vector<float> plain(1000000);
          for (int step = 0;; ++step) {
            if (rank.rank() == victim && step == 10) {
              report.stamp();
              raise(SIGKILL);
            }
            rank.all_reduce(registered.data(), 1000000);
            rank.all_reduce(plain.data(), plain.size());
            rank.all_reduce(plain.data(), 1);
            rank.broadcast(plain.data(), 1000, DType::kFloat32, 1);
          }
        });
    for (const RankReport& report : reports) {
      if (report.signal != 0) continue;
      EXPECT_EQ(report.kind(), "peer lost") << report.text();
      EXPECT_THAT(report.text(), AllOf(HasSubstr("rank " + std::to_string(victim) + " (pid "), HasSubstr("died")));
      EXPECT_LT(report.seconds_after(reports[static_cast<std::size_t>(victim)]), death_is_told_within());
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
