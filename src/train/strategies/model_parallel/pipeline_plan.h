// The plan of model_parallel: which layers a stage has, and in which order it computes. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::train {

// Cuts the layers into `stages` runs of at least one layer, so that the largest sum of costs is as small as possible;
// of equally good cuts it takes the one with the earliest boundaries. Returns the number of layers of each stage.
// LOCKSTEP_CHECK: 1 <= stages <= layers.
std::vector<std::size_t> split_layers(const std::vector<std::uint64_t>& costs, std::size_t stages);

struct PipelineOp {
  bool forward = true;
  int micro_batch = 0;
  bool operator==(const PipelineOp&) const = default;
};
// One forward, one backward (Narayanan et al., "PipeDream", SOSP 2019, section 3.2; flushed at the end of the batch, as
// in Megatron-LM's section 2.2.1, SC 2021): stage s first runs stages - s - 1 forwards, or all if there are fewer
// micro-batches, then a forward and a backward in turn, then the remaining backwards. So it keeps the activations of at
// most stages - s micro-batches.
std::vector<PipelineOp> one_forward_one_backward(int stage, int stages, int micro_batches);

// The share of a step in which a stage waits, if all take the same time: (stages - 1) / (micro_batches + stages - 1).
double pipeline_bubble(int stages, int micro_batches);

}  // namespace lockstep::train
