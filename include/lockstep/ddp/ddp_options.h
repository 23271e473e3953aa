// The options of DistributedDataParallel: PyTorch's names where the meaning is PyTorch's. docs/ddp.md says which go
// together.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/optim/loss_scaler.h"
#include "lockstep/reduce/reducer.h"

#pragma GCC visibility push(default)
namespace lockstep {

// What becomes of a step of which an averaged gradient is infinite or no number. In all but the first case the ranks
// find it before backward() returns, name its parameters, the ranks whose own gradients were such, and the step, and
// leave no parameter with a gradient.
enum class OnNonfiniteGradient : std::uint8_t {
  kIgnore,    // as if it were a number
  kSkipStep,  // on all ranks, with a warning of rank 0: the optimizer finds no gradients and changes nothing
  kThrow,     // Error on all ranks, the same text; the group goes on
};

// The same on all ranks: wrapping compares them, and a difference is an error on all.
struct DistributedDataParallelOptions {
  // MiB of gradients in each bucket: the first, the second, ...; the last value holds for all further ones. Any
  // fraction above 0. A small first bucket starts the first all-reduce early. Each dtype and device counts its own
  // buckets.
  std::vector<double> bucket_cap_mb = {1, 25};

  // Rank 0's buffers (statistics of batch normalisation) to all before each forward in training mode, when there are
  // any.
  bool forward_sync_buffers = true;

  // Which parameters a pass may leave without a gradient. By default none: such a pass is an error, on all ranks, that
  // names them.
  //   find_unused_parameters: any. The ranks agree on them when backward ends, by one small all-reduce each pass (a bit
  //   a parameter). static_graph: those that the first pass leaves, which the ranks agree on once; a later pass that
  //   differs is an error.
  // A parameter that some ranks use has their sum divided by the number of all ranks; one that no rank uses keeps no
  // gradient (has_grad() is false), so that an optimizer leaves it alone.
  bool find_unused_parameters = false;
  bool static_graph = false;

  // Names of parameters and buffers that are each rank's own: not compared, not broadcast, not averaged, not in
  // parameters().
  std::vector<std::string> ignored_parameters = {};
  // Names of parameters that are reduced last, in buckets of their own: those whose gradients come late out of turn.
  std::vector<std::string> delayed_parameters = {};

  CommHook comm_hook = {};  // empty: average

  // Above 0: at the end of each backward that is reduced, gradients are scaled by min(1, max_grad_norm / (norm +
  // 1e-6)), as optim::clip_grad_norm does it. The norm is taken bucket by bucket as averages arrive; nothing is
  // communicated, and a GPU's host does not wait. INFINITY: the norm is only taken. ddp.last_grad_norm() has it.
  float max_grad_norm = 0;
  // Other than kIgnore, backward reads each gradient once more, before it is sent, and the host of a GPU waits for the
  // device at its end. With a comm_hook, after which ranks may have different values, they agree by one byte a pass.
  OnNonfiniteGradient on_nonfinite_gradient = OnNonfiniteGradient::kIgnore;
  // The one by which the loss is scaled, where it is: the limit and the norm are of the gradients without the scale,
  // and a step that is skipped lowers it, at the optimizer's step(). Must outlive the wrapper.
  optim::LossScaler* loss_scaler = nullptr;
};

struct JoinOptions {
  // The sum of a step's gradients is divided by the number of all ranks, as before; else by the number of those that
  // still have data. Where ranks set weights, the mean is over the samples of those that have data, in both cases.
  bool divide_by_initial_world_size = true;
  // Instead of going on: an Error on all ranks as soon as one has no data left and another one has.
  bool throw_on_early_termination = false;
  // Called on a rank without data after each step of the others, whose gradients it then has: optimizer.step(),
  // schedules. Not after a backward that threw on all ranks (OnNonfiniteGradient::kThrow, a weight that is none),
  // whichever way the others went on. The ranks' weights and momenta stay equal. Empty: weights and buffers of a rank
  // that had data to the end go to all, and an optimizer's state is left alone.
  std::function<void()> after_step = {};
};

}  // namespace lockstep
#pragma GCC visibility pop
