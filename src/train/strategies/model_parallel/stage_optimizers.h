// The optimizers of a pipeline with a stage on each rank, as one optimizer that can be saved and loaded.
#pragma once

#include <memory>
#include <optional>

#include "lockstep/comm/process_group.h"
#include "src/optim/team.h"

namespace lockstep::train {

// Collective; rank r has stage r. `own` is its optimizer, or null if the stage trains nothing: then `untrained` becomes
// an optimizer without parameters, which takes part in saving and loading. Returns `untrained` or `own`; its
// state_parts() have the parts of all stages from now on: this rank's complete, the others' without elements. Throws
// InvalidArgument on all ranks if no stage trains anything, and for a LossScaler that not all ranks have with the same
// options.
optim::Optimizer* share_stages(ProcessGroup& group, optim::Optimizer* own, std::unique_ptr<optim::Optimizer>& untrained,
                               std::optional<optim::Team>& team);

}  // namespace lockstep::train
