// The path of a message around the nodes, from the view of one rank: a pure function of the call and the layout.
//
// Terms. Block: a range of the message; all blocks take the same path, one after the other. Rail: one rank of every
// node; rail r of R carries slice r of each block. Chunk: the 1/K of a rail's slice that is summed at one of the K
// nodes. Turn: at its beginning the steps of the blocks under way are started, at its end those of the previous turn
// are done. So the data of a turn travels while the ranks sum the data of the previous one.
//
// Three nodes or more form a ring. A rail's slice of B bytes takes 2 (K-1) steps, in each of which a node sends a chunk
// to the next node and receives one from the previous node: 2 (K-1)/K B bytes leave each node.
//   K-1 steps of sums    Chunk c begins at node c+1 as the sum of that node's ranks; each next node adds its own ranks'
//                        values; node c, the last one, has the result.
//   K-1 steps of copies  The results go around, from node c to node c-1.
// Two nodes exchange their sums of the complete slice in one step, also B bytes, and both add them.
//
// A broadcast goes along the ring from the root's node to the one before it; a reduce from the node after the root's
// node to the root's node, which adds its ranks' values last. B bytes leave every node but the last.
//
// So the order of a sum depends on (count, node layout) only. At the node where a chunk begins, the values are added in
// the order of that node's ranks; each following node adds its ranks' values, in their order, to the sum that it
// receives; every rank gets the bits that the last node computed. With two nodes the result is (sum of node 0's ranks)
// + (sum of node 1's ranks). A partial sum is rounded to the element type when it is sent.
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
    int node;   // of this rank
    int rails;
    int rail;  // of this rank
    std::size_t block_bytes = kBlockBytes;
    Journey journey = Journey::kAllReduce;
    int root_node = 0;  // of a broadcast or reduce
  };
  static constexpr std::size_t kBlockBytes = 512 * 1024;

  enum class Departure {
    kNothing,
    kOwnSum,   // the sum of this node's values
    kPartial,  // the result of the block's previous step
    kResult,
  };
  enum class Arrival {
    kNothing,
    kPartial,  // add this node's values; the sum is sent in the block's next step
    kResult,   // add this node's values to get the result
    kCopy,     // received data is the result
    kOther,    // with two nodes: the other node's sum, to be added to this node's
  };
  struct Step {
    std::size_t block;
    int index;    // among the block's steps
    int send;     // chunk sent to the next node
    int receive;  // chunk received from the previous node
    Departure departure;
    Arrival arrival;
  };

  explicit RingPlan(const Shape& shape);

  int next_node() const { return (shape_.node + 1) % shape_.nodes; }
  int previous_node() const { return (shape_.node + shape_.nodes - 1) % shape_.nodes; }
  int chunks() const { return shape_.nodes == 2 || shape_.journey != Journey::kAllReduce ? 1 : shape_.nodes; }

  std::size_t blocks() const { return blocks_; }
  std::size_t turns() const { return blocks_ + window() - 1; }
  // Block b is needed from the beginning of turn b; its result is complete at the end of turn b + window() - 1.
  std::size_t window() const { return 2 * static_cast<std::size_t>(legs()); }

  // The range in the message, in elements.
  Slice block(std::size_t index) const;
  Slice chunk(std::size_t block, int chunk) const;
  std::size_t largest_chunk_bytes() const;

  // Returns the steps that begin in a turn, the oldest block first; they are done at the end of the next turn.
  void begin_turn(std::size_t turn, std::vector<Step>& steps) const;

 private:
  // The length of a block's path, in steps of two turns.
  int legs() const;
  Step step_of(std::size_t block, int index) const;
  Step step_of_all_reduce(std::size_t block, int index) const;
  Step step_along_the_ring(std::size_t block, int index) const;

  Shape shape_;
  std::size_t per_block_;  // in elements
  std::size_t blocks_;
};

}  // namespace lockstep::host
