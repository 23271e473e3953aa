#include "bench/lib/cost_model.h"

#include <algorithm>
#include <cmath>

#include "lockstep/core/error.h"

namespace lockstep::bench {

namespace {

struct Layout {
  int nodes, per_node;
};

Layout layout_of(const Cluster& cluster, int ranks) {
  LOCKSTEP_CHECK(ranks >= 1 && cluster.ranks_per_node >= 1, "{} ranks, {} a node", ranks, cluster.ranks_per_node);
  if (ranks <= cluster.ranks_per_node) return {1, ranks};
  LOCKSTEP_CHECK(ranks % cluster.ranks_per_node == 0, "{} ranks do not fill nodes of {}", ranks,
                 cluster.ranks_per_node);
  return {ranks / cluster.ranks_per_node, cluster.ranks_per_node};
}

int ceil_log2(int n) {
  int log = 0;
  while ((1 << log) < n) ++log;
  return log;
}

// The slowest of the links that these ranks use.
Link slowest(const Cluster& cluster, const Layout& layout) {
  if (layout.nodes == 1) return cluster.local;
  if (layout.per_node == 1) return cluster.net;
  return {std::max(cluster.local.alpha_us, cluster.net.alpha_us), std::min(cluster.local.gbps, cluster.net.gbps)};
}

// Reduce-scatter and all-gather among n neighbors, n - 1 steps each.
double ring_us(const Link& link, int n, double bytes) { return 2 * (n - 1) * link.us(bytes / n); }

double slice_reduce_us(const Link& link, int n, double bytes) {
  return 2 * (ceil_log2(n) * link.alpha_us + (n - 1) * bytes / n / (1e3 * link.gbps));
}

double tree_us(const Cluster& cluster, const Layout& layout, double bytes) {
  const int local_levels = ceil_log2(layout.per_node), net_levels = ceil_log2(layout.nodes);
  const Link slow = slowest(cluster, layout);
  const auto with_segments = [&](double segments) {
    const double segment = bytes / (2 * segments);
    return 4 * (local_levels * cluster.local.us(segment) + net_levels * cluster.net.us(segment) +
                segments * slow.us(segment));
  };
  // Convex in the number of segments: the best whole number is next to where the derivative is zero.
  const double filling = local_levels / (1e3 * cluster.local.gbps) + net_levels / (1e3 * cluster.net.gbps);
  const double most = std::max(1.0, std::floor(bytes / 2)), best = std::sqrt(bytes * filling / (2 * slow.alpha_us));
  return std::min(with_segments(std::clamp(std::floor(best), 1.0, most)),
                  with_segments(std::clamp(std::ceil(best), 1.0, most)));
}

}  // namespace

const char* name_of(Algorithm algorithm) {
  return algorithm == Algorithm::kRing ? "ring" : algorithm == Algorithm::kHierarchical ? "hierarchical" : "tree";
}

double all_reduce_us(Algorithm algorithm, const Cluster& cluster, int ranks, double bytes) {
  const Layout layout = layout_of(cluster, ranks);
  if (ranks == 1) return 0;
  if (algorithm == Algorithm::kRing) return ring_us(slowest(cluster, layout), ranks, bytes);
  if (algorithm == Algorithm::kTree) return tree_us(cluster, layout, bytes);
  return slice_reduce_us(cluster.local, layout.per_node, bytes) + ring_us(cluster.net, layout.nodes, bytes);
}

Link link_of_fit(double alpha_us, double gbps, int ranks) {
  LOCKSTEP_CHECK(ranks >= 2, "a fit of {} ranks has no link", ranks);
  return {alpha_us / (2 * ceil_log2(ranks)), gbps * 2 * (ranks - 1) / ranks};
}

double step_us(const TrainingStep& step, const std::function<double(double bytes)>& all_reduce_us) {
  const double forward_us = (1 - kBackwardShare) * step.compute_us, backward_us = kBackwardShare * step.compute_us;
  double free_us = 0;  // when the previous bucket is done
  for (double done = 0; done < step.gradient_bytes;) {
    const double bytes = std::min(step.bucket_bytes, step.gradient_bytes - done);
    done += bytes;
    free_us = std::max(free_us, forward_us + backward_us * done / step.gradient_bytes) + all_reduce_us(bytes);
  }
  return std::max(free_us, step.compute_us);
}

std::vector<int> rank_counts(int ranks_per_node, int most) {
  std::vector<int> counts;
  for (int ranks = 2; ranks < ranks_per_node && ranks <= most; ranks *= 2) counts.push_back(ranks);
  for (int ranks = ranks_per_node; ranks <= most; ranks *= 2)
    if (ranks > 1) counts.push_back(ranks);
  return counts;
}

}  // namespace lockstep::bench
