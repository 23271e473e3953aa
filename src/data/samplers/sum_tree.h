// Draws by weight from a binary tree of partial sums.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace lockstep::data {

// Node i has the children 2i and 2i + 1; nodes n to 2n - 1 are the weights and node 1 is their sum. A changed weight
// updates the sums above it by adding anew, never by subtracting, so a sum of zero weights stays exactly 0 and is never
// drawn.
class SumTree {
 public:
  explicit SumTree(std::span<const double> weights) : count_(weights.size()), nodes_(2 * count_) {
    for (std::size_t i = 0; i < count_; ++i) nodes_[count_ + i] = weights[i];
    for (std::size_t node = count_ - 1; node > 0; --node) nodes_[node] = nodes_[2 * node] + nodes_[2 * node + 1];
  }

  // Returns the weight above 0 at the fraction `uniform`, in [0, 1), of the sum. The sum must be above 0.
  std::size_t find(double uniform) const {
    double left = uniform * nodes_[1];
    std::size_t node = 1;
    while (node < count_) {
      node *= 2;
      if (left >= nodes_[node] && nodes_[node + 1] > 0) left -= nodes_[node++];
    }
    return node - count_;
  }

  void remove(std::size_t index) {
    std::size_t node = count_ + index;
    nodes_[node] = 0;
    while ((node /= 2) > 0) nodes_[node] = nodes_[2 * node] + nodes_[2 * node + 1];
  }

 private:
  std::size_t count_;
  std::vector<double> nodes_;
};

}  // namespace lockstep::data
