// Are the replicas of wrapped modules equal, bit for bit?
#pragma once

#include "lockstep/nn/module.h"

namespace lockstep {

// Collective over the group of each wrapper that holds parameters of the module; nothing for a module without one, or of one rank.
// MismatchError on all ranks, with the first parameter and the ranks, when parameters differ that a wrapper keeps equal; buffers, ignored
// parameters and those of ranks in join() are left out. Where weights may differ between two averages rank 0 warns instead. `operation`
// begins the message. Sends 8 bytes a rank, and 8 a parameter once something differs.
void check_replicas(const nn::Module& module, const char* operation);

}  // namespace lockstep
