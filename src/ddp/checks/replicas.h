// Making and keeping replicas equal: the collective checks around DistributedDataParallel.
#pragma once

#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/nn/module.h"

namespace lockstep {

// Collective. Throws MismatchError, the same on all ranks, that names the first parameter or buffer in which a rank's
// module differs from rank 0's (count, name, shape, dtype, trained or not), those of the `ignored` names left out.
// `operation` begins the message.
void check_same_model(ProcessGroup& group, const nn::Module& module, const char* operation,
                      const std::vector<std::string>& ignored = {});

// The root's bytes to all. `what` is a string literal: the purpose of the calls. On the CPU they are there when it
// returns; a GPU's default stream goes on when they are. Tapes that read the tensors before stay valid: what is sent
// before each forward is equal as a rule.
void broadcast_tensors(ProcessGroup& group, const std::vector<NamedTensor>& tensors, const char* what, int root = 0);
// The same where the values are new ones: a backward that read the ones before is refused.
void replace_by_roots(ProcessGroup& group, const std::vector<NamedTensor>& tensors, const char* what, int root = 0);

}  // namespace lockstep
