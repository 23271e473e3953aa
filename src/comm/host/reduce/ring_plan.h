// How a message goes around the nodes, seen from one rank: a pure function of the call and the layout.
//
// Terms. Block: a range of the message; every block makes the same journey, one block behind the other. Rail: one rank
// of every node; rail r of R carries slice r of each block. Chunk: the 1/K of a rail's slice that is summed at one of
// the K nodes. Turn: at its beginning the steps of the blocks that are under way are started, at its end those of the
// turn before are done. So the data of a turn travels while the ranks sum the data that came in the one before.
//
// Three nodes or more make a ring. A rail's slice of B bytes takes 2 (K-1) steps, in which each node sends a chunk to
// the next one and receives one from the one before: 2 (K-1)/K B bytes leave each node.
//   K-1 steps of sums    chunk c begins at node c+1 as the sum of that node's ranks, each next node adds its own ranks'
//   values,
//                        and node c, the last one, has the result;
//   K-1 steps of copies  the results go around, from node c to node c-1.
// Two nodes exchange their sums of the whole slice, B bytes as well, in one step, and both add them.
//
// A broadcast goes along the ring from the root's node to the one before it, a reduce from the node behind the root's
// to the root's, which adds its ranks' values last: B bytes leave every node but the last.
//
// The order of sums is thus a matter of (count, node layout) alone: where a chunk begins, the values are added in the
// order of that node's ranks; each following node adds its ranks' values, in their order, to what it receives; every
// rank gets the bits that the last node computed. With two nodes: (sum of node 0's ranks) + (sum of node 1's ranks). A
// partial sum is rounded to the element type when it is sent.
#pragma once

#include <cstddef>
#include <vector>

#include "src/comm/host/reduce/reduce_kernels.h"

namespace lockstep::host {

class RingPlan {
 public:
  enum class Journey { kAllReduce, kBroadcast, kReduce };
  struct Shape {
    std::size_t count;  // elements of the message
    DType dtype;
    int nodes;  // at least 2
    int node;   // this rank's
    int rails;
    int rail;  // this rank's
    std::size_t block_bytes = kBlockBytes;
    Journey journey = Journey::kAllReduce;
    int root_node = 0;  // of a broadcast or reduce
  };
  static constexpr std::size_t kBlockBytes = 512 * 1024;

  enum class Departure {
    kNothing,
    kOwnSum,   // of this node's values
    kPartial,  // what the block's step before made
    kResult,
  };
  enum class Arrival {
    kNothing,
    kPartial,  // add this node's values; the sum is sent in the block's next step
    kResult,   // add this node's values: that is the result
    kCopy,     // is the result
    kOther,    // of two nodes: the other one's sum, to be added to this one's
  };
  struct Step {
    std::size_t block;
    int index;    // of the block's steps
    int send;     // chunk to the next node
    int receive;  // chunk from the node before
    Departure departure;
    Arrival arrival;
  };

  explicit RingPlan(const Shape& shape);

  int next_node() const { return (shape_.node + 1) % shape_.nodes; }
  int previous_node() const { return (shape_.node + shape_.nodes - 1) % shape_.nodes; }
  int chunks() const { return shape_.nodes == 2 || shape_.journey != Journey::kAllReduce ? 1 : shape_.nodes; }

  std::size_t blocks() const { return blocks_; }
  std::size_t turns() const { return blocks_ + window() - 1; }
  // Block b is needed from the beginning of turn b, and has its result at the end of turn b + window() - 1.
  std::size_t window() const { return 2 * static_cast<std::size_t>(legs()); }

  // Where they lie in the message, in elements.
  Slice block(std::size_t index) const;
  Slice chunk(std::size_t block, int chunk) const;
  std::size_t largest_chunk_bytes() const;

  // The steps that begin in a turn, the oldest block first; they are done at the end of the turn after it.
  void begin_turn(std::size_t turn, std::vector<Step>& steps) const;

 private:
  // A block's journey, in steps of two turns.
  int legs() const;
  Step step_of(std::size_t block, int index) const;
  Step step_of_all_reduce(std::size_t block, int index) const;
  Step step_along_the_ring(std::size_t block, int index) const;

  Shape shape_;
  std::size_t per_block_;  // elements
  std::size_t blocks_;
};

}  // namespace lockstep::host
