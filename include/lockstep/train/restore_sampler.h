// Restores a sampler's state on all ranks or on none.
#pragma once

#include <memory>

#include "lockstep/comm/process_group.h"
#include "lockstep/data/sampler.h"

#pragma GCC visibility push(default)
namespace lockstep::train {

// Collective. Like sampler.restore(state), for states that were not loaded with load_checkpoint(), which sends rank 0's
// to all. The ranks first compare their states and samplers. If a rank's differ from rank 0's, or a sampler refuses the
// state, all ranks throw MismatchError (InvalidArgument if all refuse it) with the rank and the difference, and no
// sampler changes. Null group: the thread's default group; without one: a job of one rank.
void restore_sampler(data::Sampler& sampler, const data::SamplerState& state,
                     const std::shared_ptr<ProcessGroup>& group = nullptr);

}  // namespace lockstep::train
#pragma GCC visibility pop
