// Batch normalisation by the statistics of all ranks' samples.
//
//   Net net;                                       // with nn::BatchNorm layers
//   nn::convert_sync_batchnorm(net, group);        // before it is wrapped, on all ranks
//   DistributedDataParallel ddp(net, group);
//
// In training, n ranks with a part of the batch each compute what one rank with the whole batch would, to float32's
// rounding; parts may differ in their number of samples, and may be empty. Running statistics have the same bits on all
// ranks. In evaluation nothing is exchanged, so that ranks may evaluate as many batches as they have.
//
// The layers' exchanges are calls of `group` (on the CPU's memory, and from there; see StatisticsExchange), in forward
// and in backward, where they lie between the buckets of DistributedDataParallel. All ranks must issue them in one
// order. They do where each runs the same layers and uses the same parameters. Where ranks use different ones
// (find_unused_parameters), buckets are full at different places: give the layers a group of their own,
// `group->split(0)`. A rank that trains or evaluates alone is an error on all ranks that shows both calls; in a group
// of their own the others learn of it at the group's timeout, which names it.
//
// A rank's loss then has a part in the gradients of all ranks' samples: where ranks have unequal numbers of samples,
// make the loss the sum over the rank's samples, times ranks / samples of all ranks, and the averaged gradients are
// exactly the whole batch's. set_weight(), join() and capture() refuse models with such layers.
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/comm/process_group.h"
#include "lockstep/nn/batch_norm.h"

#pragma GCC visibility push(default)
namespace lockstep::nn {

// For models that are written with it; the group lives as long as the layer.
class SyncBatchNorm : public BatchNorm {
 public:
  // InvalidArgument: no group, or channels below 1.
  SyncBatchNorm(std::int64_t channels, std::shared_ptr<ProcessGroup> group, const BatchNormLayerOptions& options = {});
};

// Makes every BatchNorm in the module, itself included, a SyncBatchNorm of this group, in place: parameters, buffers
// and their names stay. Returns how many there are. The same on all ranks; communicates nothing. InvalidArgument: no
// group.
std::int64_t convert_sync_batchnorm(Module& module, const std::shared_ptr<ProcessGroup>& group);

}  // namespace lockstep::nn
#pragma GCC visibility pop
