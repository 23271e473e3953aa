// The cost of an all-reduce and of a training step in a model: a report of assumptions, not a promise.
//
// A message of m bytes takes a + m b (Hockney 1994: a = alpha, the latency; b = beta, 1 / bandwidth; the sum of two
// numbers is part of b). There are n ranks on N nodes, r = n / N on each; a_l and b_l apply inside a node, a_n and b_n
// between nodes; a_x and b_x are the larger of these that occur. A rank, and a node towards the others, can send and
// receive at full speed at the same time. For m bytes:
//
//   ring          2 (n-1) (a_x + m/n b_x)
//                 Reduce-scatter, then all-gather; every step waits for the slowest edge (Thakur, Rabenseifner, Gropp
//                 2005, section 4).
//   hierarchical  2 (ceil(log2 r) a_l + (r-1)/r m b_l) + 2 (N-1) (a_n + m/N b_n)
//                 The node's ranks reduce a slice each and gather at the end: direct reading of the peers, and barriers
//                 that are log2 r messages deep (the same terms as Rabenseifner's algorithm, ibid.). Between the nodes
//                 each rank rings its slice; these r rings of m/r bytes share the node's wire. One phase after the
//                 other: segments that overlap cost less.
//   tree          2 min over k of (2 h_l (a_l + s b_l) + 2 h_n (a_n + s b_n) + 2 k (a_x + s b_x)),  s = m / 2k
//                 Two binary trees, each with one half of the message in k segments; h_l = ceil(log2 r), h_n =
//                 ceil(log2 N). With one kind of link it is 2 (2h + 2k) (a + s b): a reduction and a broadcast of
//                 Sanders, Speck, Traeff 2009, section 2. It is their bound, and high for 2 ranks.
//
// Thakur et al.: "Optimization of Collective Communication Operations in MPICH", IJHPCA 19(1). Sanders et al.:
// "Two-tree Algorithms for Full Bandwidth Broadcast, Reduction and Scan", Parallel Computing 35(12).
#pragma once

#include <array>
#include <functional>
#include <string>
#include <vector>

namespace lockstep::bench {

struct Link {
  double alpha_us;
  double gbps;  // GB/s = 1000 bytes in 1 us
  double us(double bytes) const { return alpha_us + bytes / (1e3 * gbps); }
};

struct Cluster {
  Link local, net;
  int ranks_per_node = 1;
};

enum class Algorithm { kRing, kHierarchical, kTree };
inline constexpr std::array kAlgorithms = {Algorithm::kRing, Algorithm::kHierarchical, Algorithm::kTree};
const char* name_of(Algorithm algorithm);

// The time of an all-reduce among the first `ranks`; one rank needs none. They must fit into one node or fill their
// nodes.
double all_reduce_us(Algorithm algorithm, const Cluster& cluster, int ranks, double bytes);

// The link for which `hierarchical` in one node takes the measured time alpha_us + bytes / gbps for `ranks` >= 2.
Link link_of_fit(double alpha_us, double gbps, int ranks);

struct TrainingStep {
  double compute_us;  // forward, backward and update of one rank
  double gradient_bytes;
  double bucket_bytes;  // the last bucket has the rest
};

// Share of a step's compute time: backward has two products where forward has one.
inline constexpr double kBackwardShare = 2.0 / 3;

// Gradients become final evenly over backward, the last one at its end. The all-reduce of a bucket starts when the
// bucket is complete and the previous one is done; the last one cannot be hidden. The model assumes that communication
// does not slow down compute, which is wrong if both run on the same cores.
double step_us(const TrainingStep& step, const std::function<double(double bytes)>& all_reduce_us);

// 2, 4, 8, ... within a node, then doubling numbers of full nodes, up to `most` ranks.
std::vector<int> rank_counts(int ranks_per_node, int most);

}  // namespace lockstep::bench
