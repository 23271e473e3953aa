#include "src/train/strategies/model_parallel/pipeline_plan.h"

#include <algorithm>
#include <limits>

#include "lockstep/core/error.h"

namespace lockstep::train {

std::vector<std::size_t> split_layers(const std::vector<std::uint64_t>& costs, std::size_t stages) {
  const std::size_t layers = costs.size();
  LOCKSTEP_CHECK(stages >= 1 && stages <= layers, "{} stages of {} layers", stages, layers);
  std::vector<std::uint64_t> before(layers + 1, 0);  // the sum of the costs of the layers before
  for (std::size_t i = 0; i < layers; ++i) before[i + 1] = before[i] + costs[i];
  // worst[s][n]: the largest stage of the best cut of layers n, n + 1, ... into s stages, whose first has first[s][n]
  // layers.
  std::vector<std::vector<std::uint64_t>> worst(
      stages + 1, std::vector<std::uint64_t>(layers + 1, std::numeric_limits<std::uint64_t>::max()));
  std::vector<std::vector<std::size_t>> first(stages + 1, std::vector<std::size_t>(layers + 1, 0));
  worst[0][layers] = 0;
  for (std::size_t s = 1; s <= stages; ++s)
    for (std::size_t n = 0; n + s <= layers; ++n)
      for (std::size_t end = n + 1; end + (s - 1) <= layers; ++end) {
        const std::uint64_t cut = std::max(before[end] - before[n], worst[s - 1][end]);
        if (first[s][n] != 0 && cut >= worst[s][n]) continue;
        if (worst[s - 1][end] == std::numeric_limits<std::uint64_t>::max()) continue;  // layers would be left over
        worst[s][n] = cut;
        first[s][n] = end - n;
      }
  std::vector<std::size_t> sizes;
  for (std::size_t s = stages, n = 0; s > 0; --s) {
    sizes.push_back(first[s][n]);
    n += sizes.back();
  }
  return sizes;
}

std::vector<PipelineOp> one_forward_one_backward(int stage, int stages, int micro_batches) {
  const int warm_up = std::min(stages - stage - 1, micro_batches);
  std::vector<PipelineOp> ops;
  for (int micro = 0; micro < warm_up; ++micro) ops.push_back({true, micro});
  for (int micro = warm_up; micro < micro_batches; ++micro) {
    ops.push_back({true, micro});
    ops.push_back({false, micro - warm_up});
  }
  for (int micro = micro_batches - warm_up; micro < micro_batches; ++micro) ops.push_back({false, micro});
  return ops;
}

double pipeline_bubble(int stages, int micro_batches) {
  return static_cast<double>(stages - 1) / static_cast<double>(micro_batches + stages - 1);
}

}  // namespace lockstep::train
