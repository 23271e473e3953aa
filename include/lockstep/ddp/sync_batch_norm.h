// Batch normalisation with the statistics of all ranks' samples.
//
//   Net net;                                       // with nn::BatchNorm layers
//   nn::convert_sync_batchnorm(net, group);        // before it is wrapped, on all ranks
//   DistributedDataParallel ddp(net, group);
//
// In training, n ranks that each have a part of the batch compute the same as one rank with the entire batch, up to
// float32 rounding. Parts may have different numbers of samples or be empty. Running statistics have the same bits on
// all ranks. In evaluation nothing is exchanged, so ranks may evaluate different numbers of batches.
//
// The layers' exchanges are calls of `group` (in CPU memory; see StatisticsExchange) in forward and in backward, where
// they come between the buckets of DistributedDataParallel. All ranks must make them in the same order, which is the
// case if each runs the same layers and uses the same parameters. If ranks use different ones (find_unused_parameters),
// buckets fill at different times: give the layers a separate group, `group->split(0)`. If one rank trains or evaluates
// alone, all ranks throw an error that shows both calls; with a separate group, the others time out with an error that
// has the group's name.
//
// A rank's loss then affects the gradients of all ranks' samples. If the ranks have different numbers of samples, use
// the sum over the rank's samples times ranks / samples of all ranks as the loss; the averaged gradients are then
// exactly those of the entire batch. set_weight(), join() and capture() refuse models with such layers.
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/comm/process_group.h"
#include "lockstep/nn/batch_norm.h"

#pragma GCC visibility push(default)
namespace lockstep::nn {

// For use in your own models. The layer keeps the group alive.
class SyncBatchNorm : public BatchNorm {
 public:
  // Throws InvalidArgument without a group or for channels below 1.
  SyncBatchNorm(std::int64_t channels, std::shared_ptr<ProcessGroup> group, const BatchNormLayerOptions& options = {});
};

// Converts every BatchNorm in the module, including the module itself, to a SyncBatchNorm of this group in place;
// parameters, buffers and names are unchanged. Returns their number. Call it on all ranks; it does not communicate.
// Throws InvalidArgument without a group.
std::int64_t convert_sync_batchnorm(Module& module, const std::shared_ptr<ProcessGroup>& group);

}  // namespace lockstep::nn
#pragma GCC visibility pop
