// Checkpoints that a thread writes beside the training: the calls of the training thread.
#pragma once

#include <string>

#include "src/train/checkpoint/checkpoint_plan.h"

namespace lockstep::train::checkpoint {

// Collective. Copies what the plan's files save, and starts the thread that writes. Throws on all ranks if the copy
// fails on one: Error, InvalidArgument.
void save_in_background(const CallGroup& group, SavePlan plan);

// Collective among ranks that have saved in the background. Waits for the last save, and throws on all ranks the error
// with which it ended and that no call has reported yet, unless OnSaveError::kContinue forgives it. Returns "", or on
// all ranks the same text if it has no end within a bounded time.
std::string settle_last_save(const CallGroup& group);

// The same, and waits as long as something is written. Returns the checkpoint's folder on rank 0 if it was saved.
std::string await_last_save(const CallGroup& group);

// Waits for this rank's part of the last save, for a bounded time. Not collective.
void await_own_save(const CallGroup& group);

}  // namespace lockstep::train::checkpoint
