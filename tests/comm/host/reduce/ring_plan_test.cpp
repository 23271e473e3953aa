// The plan of the ring, executed for all nodes at once in memory: the terms of a sum, their order, and the cost.
#include "src/comm/host/reduce/ring_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <tuple>

#include "src/comm/host/machine/node_layout.h"

namespace lockstep::host {
namespace {

using Terms = std::vector<int>;  // the nodes whose sums an element holds, in the order in which they were added

// One rail of all nodes. Every element is the list of the values that were added to it.
class Simulation {
 public:
  explicit Simulation(const RingPlan::Shape& shape) : shape_(shape) {
    for (int node = 0; node < shape.nodes; ++node) {
      RingPlan::Shape mine = shape;
      mine.node = node;
      nodes_.push_back({RingPlan(mine), std::vector<Terms>(shape.count), {}, {}});
    }
    links_.resize(nodes_.size());
  }

  void run() {
    const std::size_t turns = nodes_[0].plan.turns();
    for (std::size_t turn = 0; turn < turns; ++turn) {
      std::vector<std::vector<RingPlan::Step>> begun(nodes_.size());
      for (std::size_t node = 0; node < nodes_.size(); ++node) {
        EXPECT_EQ(nodes_[node].plan.turns(), turns);
        nodes_[node].plan.begin_turn(turn, begun[node]);
        for (const RingPlan::Step& step : begun[node]) begin(node, step, turn);
      }
      for (std::size_t node = 0; node < nodes_.size(); ++node) {
        for (const RingPlan::Step& step : nodes_[node].under_way) finish(node, step, turn);
        nodes_[node].under_way = begun[node];
      }
    }
    for (const auto& link : links_) EXPECT_TRUE(link.empty()) << "something was sent and not received";
    for (const Node& node : nodes_) EXPECT_TRUE(node.under_way.empty());
  }

  // Sets the root's values of a broadcast.
  void set_results(int node, const Terms& terms) {
    auto& results = nodes_[static_cast<std::size_t>(node)].results;
    std::fill(results.begin(), results.end(), terms);
  }
  const std::vector<Terms>& results_of(int node) const { return nodes_[static_cast<std::size_t>(node)].results; }
  std::size_t elements_sent(int node) const { return nodes_[static_cast<std::size_t>(node)].sent; }

 private:
  struct Node {
    RingPlan plan;
    std::vector<Terms> results;
    std::vector<RingPlan::Step> under_way;
    std::map<std::tuple<std::size_t, int>, std::vector<Terms>> partial;  // by block and chunk
    std::size_t sent = 0;
  };
  struct Piece {
    std::size_t block;
    int chunk;
    std::vector<Terms> values;
  };

  void begin(std::size_t index, const RingPlan::Step& step, std::size_t turn) {
    Node& node = nodes_[index];
    EXPECT_GE(turn, step.block) << "begins before the block is there";
    const Slice chunk = node.plan.chunk(step.block, step.send);
    if (step.departure == RingPlan::Departure::kNothing) return;
    std::vector<Terms> values(chunk.count(), Terms{static_cast<int>(index)});
    if (step.departure == RingPlan::Departure::kPartial) values = node.partial.at({step.block, step.send});
    if (step.departure == RingPlan::Departure::kResult)
      values.assign(node.results.begin() + static_cast<std::ptrdiff_t>(chunk.begin),
                    node.results.begin() + static_cast<std::ptrdiff_t>(chunk.end));
    for (const Terms& value : values) EXPECT_FALSE(value.empty()) << "sends what it does not have yet";
    node.sent += chunk.count();
    links_[static_cast<std::size_t>(node.plan.next_node())].push_back({step.block, step.send, std::move(values)});
  }

  void finish(std::size_t index, const RingPlan::Step& step, std::size_t turn) {
    Node& node = nodes_[index];
    if (step.arrival == RingPlan::Arrival::kNothing) return;
    ASSERT_FALSE(links_[index].empty());
    Piece piece = std::move(links_[index].front());
    links_[index].pop_front();
    ASSERT_EQ(piece.block, step.block);
    ASSERT_EQ(piece.chunk, step.receive) << "what arrives is not what was sent";
    EXPECT_LT(turn, step.block + node.plan.window()) << "the block is done too late";
    const Slice chunk = node.plan.chunk(step.block, step.receive);
    ASSERT_EQ(piece.values.size(), chunk.count());
    for (Terms& terms : piece.values) {
      const int own = static_cast<int>(index);
      if (step.arrival == RingPlan::Arrival::kOther)
        terms = own == 0 ? Terms{own, terms[0]} : Terms{terms[0], own};
      else if (step.arrival != RingPlan::Arrival::kCopy)
        terms.push_back(own);
    }
    if (step.arrival == RingPlan::Arrival::kPartial) {
      node.partial[{step.block, step.receive}] = std::move(piece.values);
      return;
    }
    for (std::size_t i = 0; i < piece.values.size(); ++i) {
      EXPECT_TRUE(node.results[chunk.begin + i].empty()) << "an element's result came twice";
      node.results[chunk.begin + i] = piece.values[i];
    }
  }

  RingPlan::Shape shape_;
  std::vector<Node> nodes_;
  std::vector<std::deque<Piece>> links_;  // to each node from the previous one
};

class Plans : public ::testing::TestWithParam<std::tuple<int, int, int>> {};

TEST_P(Plans, EveryElementIsSummedOnceByEveryNodeAndComesToAllAlike) {
  const auto [nodes, rails, count] = GetParam();
  std::vector<int> times(static_cast<std::size_t>(count));  // that some rail carried the element
  for (int rail = 0; rail < rails; ++rail) {
    Simulation simulation({static_cast<std::size_t>(count), DType::kFloat32, nodes, 0, rails, rail, 4096});
    simulation.run();
    for (std::size_t i = 0; i < times.size(); ++i) {
      const Terms& sum = simulation.results_of(0)[i];
      if (sum.empty()) continue;
      ++times[i];
      ASSERT_EQ(std::set<int>(sum.begin(), sum.end()).size(), static_cast<std::size_t>(nodes)) << "at " << i;
      ASSERT_EQ(sum.size(), static_cast<std::size_t>(nodes));
      for (std::size_t term = 1; term < sum.size(); ++term)
        ASSERT_EQ(sum[term], (sum[term - 1] + 1) % nodes) << "not in the nodes' order";
      for (int node = 1; node < nodes; ++node)
        ASSERT_EQ(simulation.results_of(node)[i], sum) << "nodes differ at " << i;
    }
  }
  for (std::size_t i = 0; i < times.size(); ++i) ASSERT_EQ(times[i], 1) << "element " << i;
}

TEST_P(Plans, ANodeSendsTwiceKMinusOneKthsOfTheMessage) {
  const auto [nodes, rails, count] = GetParam();
  std::vector<std::size_t> sent(static_cast<std::size_t>(nodes));
  for (int rail = 0; rail < rails; ++rail) {
    Simulation simulation({static_cast<std::size_t>(count), DType::kFloat32, nodes, 0, rails, rail, 4096});
    simulation.run();
    for (int node = 0; node < nodes; ++node) sent[static_cast<std::size_t>(node)] += simulation.elements_sent(node);
  }
  std::size_t all = 0;
  for (const std::size_t one : sent) all += one;
  EXPECT_EQ(all, static_cast<std::size_t>(2 * (nodes - 1) * count));
  const std::size_t lines_of_blocks =
      static_cast<std::size_t>(count / 1024 + 1) * static_cast<std::size_t>(rails) * 16 * 2;
  for (const std::size_t one : sent)
    EXPECT_LE(one, all / sent.size() + lines_of_blocks)
        << "no node sends more than its part, except to fill cache lines";
}

INSTANTIATE_TEST_SUITE_P(Ring, Plans,
                         ::testing::Combine(::testing::Values(2, 3, 4, 5, 8), ::testing::Values(1, 2, 3),
                                            ::testing::Values(1, 15, 16, 1000, 1024, 1025, 9973)),
                         [](const auto& tested) {
                           return std::to_string(std::get<0>(tested.param)) + "_nodes_" +
                                  std::to_string(std::get<1>(tested.param)) + "_rails_" +
                                  std::to_string(std::get<2>(tested.param));
                         });

TEST(RingPlan, TheSumOfAChunkBeginsBehindTheNodeThatHasItsResult) {
  Simulation simulation({1024, DType::kFloat32, 4, 0, 1, 0, 4096});
  simulation.run();
  const auto& results = simulation.results_of(2);
  EXPECT_EQ(results[0], (Terms{1, 2, 3, 0}));
  EXPECT_EQ(results[256], (Terms{2, 3, 0, 1}));
  EXPECT_EQ(results[512], (Terms{3, 0, 1, 2}));
  EXPECT_EQ(results[1023], (Terms{0, 1, 2, 3}));
}

TEST(RingPlan, ABroadcastComesToAllNodesAndAReduceToTheRoots) {
  for (const int nodes : {2, 3, 5})
    for (int root = 0; root < nodes; ++root) {
      RingPlan::Shape shape{5000, DType::kFloat32, nodes, 0, 1, 0, 4096, RingPlan::Journey::kBroadcast, root};
      Simulation broadcast(shape);
      broadcast.set_results(root, {77});
      broadcast.run();
      shape.journey = RingPlan::Journey::kReduce;
      Simulation reduce(shape);
      reduce.run();
      Terms order;
      for (int hop = 1; hop <= nodes; ++hop) order.push_back((root + hop) % nodes);
      for (int node = 0; node < nodes; ++node) {
        for (const Terms& value : broadcast.results_of(node)) ASSERT_EQ(value, Terms{77}) << "node " << node;
        for (const Terms& value : reduce.results_of(node))
          ASSERT_EQ(value, node == root ? order : Terms()) << "node " << node;
        EXPECT_EQ(broadcast.elements_sent(node), node == (root + nodes - 1) % nodes ? 0u : 5000u);
        EXPECT_EQ(reduce.elements_sent(node), node == root ? 0u : 5000u);
      }
    }
}

TEST(RingPlan, NoChunkIsLargerThanItSays) {
  for (const int nodes : {2, 3, 7})
    for (const std::size_t count : {1u, 100u, 1024u, 5000u}) {
      const RingPlan plan({count, DType::kFloat32, nodes, 1, 2, 1, 4096});
      for (std::size_t block = 0; block < plan.blocks(); ++block)
        for (int chunk = 0; chunk < plan.chunks(); ++chunk)
          EXPECT_LE(plan.chunk(block, chunk).count() * 4, plan.largest_chunk_bytes());
    }
}

TEST(NodeLayout, CountsNodesByTheirLowestRanksAndRailsByTheSmallestNode) {
  const NodeLayout layout({0, 1, 1, 0, 4, 1, 4});  // {0, 3}, {1, 2, 5}, {4, 6}
  EXPECT_EQ(layout.nodes(), 3);
  EXPECT_EQ(layout.ranks(), 7);
  EXPECT_EQ(layout.rails(), 2);
  EXPECT_EQ(layout.members(1), (std::vector<int>{1, 2, 5}));
  EXPECT_EQ(layout.node_of(6), 2);
  EXPECT_EQ(layout.local_rank_of(5), 2);
  EXPECT_EQ(layout.describe(), "ranks 0,3 | 1-2,5 | 4,6");
  EXPECT_FALSE(layout.is_one_node() || layout.is_all_alone());
  EXPECT_TRUE(NodeLayout({0, 0, 0}).is_one_node());
  EXPECT_TRUE(NodeLayout({0, 1, 2}).is_all_alone());
  EXPECT_ANY_THROW(NodeLayout({0, 0, 1})) << "rank 1 leads nobody";
}

}  // namespace
}  // namespace lockstep::host
