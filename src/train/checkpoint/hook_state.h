// A comm hook's state in a checkpoint: comm_hook.safetensors. What is each rank's own lies there as (ranks, count), of
// all ranks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/reduce/comm_hook.h"
#include "lockstep/tensor/named_tensor.h"
#include "src/train/files/safetensors.h"

namespace lockstep::checkpoint {

// Empty for an empty hook.
std::vector<HookState> states_of(const CommHook& hook);

// Collective where there is any state: rank 0 gets it, the others nothing.
std::vector<NamedTensor> gather_hook_state(const CommHook& hook, ProcessGroup* group);

// Throws FileError, `path` first, where `saved` is not this hook's state.
void check_hook_state(const CommHook& hook, const std::vector<SavedTensor>& saved, const std::string& path);

// Collective: rank 0's `saved` to the hooks of all ranks. Saved by another number of ranks, what was each rank's own
// becomes their mean, on each: the sum that is still to be sent stays what it was.
void restore_hook_state(const CommHook& hook, const std::vector<SavedTensor>* saved, ProcessGroup* group);

}  // namespace lockstep::checkpoint
