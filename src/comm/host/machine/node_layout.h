// The nodes of a group: which ranks share memory.
#pragma once

#include <string>
#include <vector>

namespace lockstep::host {

// Nodes are numbered in the order of their lowest ranks; the ranks of a node are sorted. The same on all ranks of a
// group.
class NodeLayout {
 public:
  NodeLayout() = default;
  // `leaders`: for each rank, the lowest rank of its node.
  explicit NodeLayout(const std::vector<int>& leaders);

  int nodes() const { return static_cast<int>(members_.size()); }
  int ranks() const { return static_cast<int>(node_of_.size()); }
  int node_of(int rank) const { return node_of_[static_cast<std::size_t>(rank)]; }
  int local_rank_of(int rank) const { return local_rank_of_[static_cast<std::size_t>(rank)]; }
  const std::vector<int>& members(int node) const { return members_[static_cast<std::size_t>(node)]; }
  int size_of_node(int node) const { return static_cast<int>(members(node).size()); }
  // The number of ranks on each node that exchange data with the ranks of the same local rank on other nodes: the size
  // of the smallest node.
  int rails() const { return rails_; }

  bool is_one_node() const { return nodes() == 1; }
  bool is_all_alone() const { return nodes() == ranks(); }
  std::string describe() const;  // "ranks 0-3 | 4-7": for logs and messages

 private:
  std::vector<std::vector<int>> members_;  // by node
  std::vector<int> node_of_;               // by rank
  std::vector<int> local_rank_of_;         // by rank
  int rails_ = 0;
};

}  // namespace lockstep::host
