#pragma once

#include "lockstep/nn/module.h"

namespace lockstep {

// Returns whether a layer of the module exchanges its statistics with other ranks in each forward.
bool has_sync_batch_norm(const nn::Module& module);

}  // namespace lockstep
