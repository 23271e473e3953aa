// The options of DistributedDataParallel, with PyTorch's names where the meaning is the same. docs/ddp.md lists which
// can be combined.
#pragma once

#include <string>
#include <vector>

#include "lockstep/optim/loss_scaler.h"
#include "lockstep/reduce/pass_options.h"
#include "lockstep/reduce/reducer.h"

#pragma GCC visibility push(default)
namespace lockstep {

// The options must be the same on all ranks; wrapping compares them, and a difference is an error on all.
struct DistributedDataParallelOptions {
  // MiB of gradients in each bucket: the first, the second, ...; the last value applies to all remaining ones. Any
  // value above 0, including fractions. A small first bucket starts the first all-reduce early. Each dtype and device
  // has its own buckets.
  std::vector<double> bucket_cap_mb = {1, 25};

  // Send rank 0's buffers (statistics of batch normalisation), if any, to all ranks before each forward in training
  // mode.
  bool forward_sync_buffers = true;

  // Parameters that a pass may leave without a gradient. By default none: such a pass is an error with their names on
  // all ranks.
  //   find_unused_parameters: any. At the end of backward the ranks agree on them by a small all-reduce (one bit per
  //   parameter). static_graph: those that the first pass leaves without a gradient; the ranks agree on them once, and
  //   a later pass that differs is an error.
  // The sum of a parameter that only some ranks use is divided by the number of all ranks. One that no rank uses has no
  // gradient (has_grad() is false), so that an optimizer does not change it.
  bool find_unused_parameters = false;
  bool static_graph = false;

  // Names of parameters and buffers that each rank keeps for itself: not compared, broadcast or averaged, and not in
  // parameters().
  std::vector<std::string> ignored_parameters = {};
  // Names of parameters that are reduced last, in separate buckets, because their gradients become ready late and out
  // of order.
  std::vector<std::string> delayed_parameters = {};

  CommHook comm_hook = {};  // empty: average

  // Above 0: each reduced backward ends by scaling the gradients by min(1, max_grad_norm / (norm + 1e-6)), like
  // optim::clip_grad_norm. The norm is computed bucket by bucket as averages arrive, without communication and without
  // blocking a GPU's host. INFINITY: only computes the norm. ddp.last_grad_norm() returns it.
  float max_grad_norm = 0;
  // With values other than kIgnore, backward reads each gradient once more before it is sent, and a GPU's host waits
  // for the device at the end. With a comm_hook, after which ranks may have different values, they agree by one byte
  // per pass.
  OnNonfiniteGradient on_nonfinite_gradient = OnNonfiniteGradient::kIgnore;
  // The scaler of the loss, if it is scaled: limit and norm then refer to the unscaled gradients, and a skipped step
  // lowers the scale in the optimizer's step(). Must outlive the wrapper.
  optim::LossScaler* loss_scaler = nullptr;
};

}  // namespace lockstep
#pragma GCC visibility pop
