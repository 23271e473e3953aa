// The optimizers of a pipeline's stages where each rank has one stage: one optimizer to those who save and load.
#pragma once

#include <memory>
#include <optional>

#include "lockstep/comm/process_group.h"
#include "src/optim/team.h"

namespace lockstep::train {

// Collective; rank r has stage r, with `own`, or null where it trains nothing: then `untrained` becomes an optimizer
// without parameters, which takes part in saving and loading. Returns that or `own`, whose state_parts() have those of
// all stages from now on: the own ones whole, the others without elements. Throws InvalidArgument on all ranks where no
// stage trains anything, and for a LossScaler that not all ranks have, or not with the same options.
optim::Optimizer* share_stages(ProcessGroup& group, optim::Optimizer* own, std::unique_ptr<optim::Optimizer>& untrained,
                               std::optional<optim::Team>& team);

}  // namespace lockstep::train
