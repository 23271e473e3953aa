// A sampler's state, taken by all ranks or by none.
#pragma once

#include <memory>

#include "lockstep/comm/process_group.h"
#include "lockstep/data/sampler.h"

#pragma GCC visibility push(default)
namespace lockstep {

// Collective. As sampler.restore(state), for states that did not come by load_checkpoint(), which sends rank 0's to
// all. First the ranks compare their states and samplers: where a rank's differ from rank 0's, or a sampler refuses the
// state, all ranks throw MismatchError (of a refusal that all share: InvalidArgument) with the rank and the difference,
// and no sampler has changed. Null group: the thread's default group; none: a job of one.
void restore_sampler(data::Sampler& sampler, const data::SamplerState& state,
                     const std::shared_ptr<ProcessGroup>& group = nullptr);

}  // namespace lockstep
#pragma GCC visibility pop
