// The parts of parallel_apply() that the layer nn::Branches and checkpoints use.
#pragma once

#include "lockstep/autograd/parallel_apply.h"

namespace lockstep {

// A branch with several results.
struct WideBranch {
  std::function<Tensors()> function;
  Device& device;
};

// The results of each branch. `on_threads` = false: computes all on the caller's thread; the bits are the same.
std::vector<Tensors> apply_branches(const std::vector<WideBranch>& branches, bool on_threads);

// The state of a thread behind recomputing() and in_checkpoint(): a thread that computes for another takes its state.
struct CheckpointContext {
  bool recomputing = false;
  int functions_in_progress = 0;
};
CheckpointContext checkpoint_context();
void set_checkpoint_context(const CheckpointContext& context);

}  // namespace lockstep
