#pragma once

#include "lockstep/nn/module.h"

namespace lockstep {

// Does a layer of the module exchange its statistics with other ranks in each forward?
bool has_sync_batch_norm(const nn::Module& module);

}  // namespace lockstep
