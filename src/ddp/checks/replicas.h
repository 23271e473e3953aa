// Collective checks and broadcasts that make and keep replicas equal.
#pragma once

#include <string>
#include <vector>

#include "lockstep/comm/agreement.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/nn/module.h"

namespace lockstep {

// Collective. Throws the same MismatchError on all ranks with the first parameter or buffer in which a rank's module
// differs from rank 0's (number, name, shape, dtype, trained or not), except those in `ignored`. `operation` begins the
// message.
void check_same_model(GroupRef group, const nn::Module& module, const char* operation,
                      const std::vector<std::string>& ignored = {});

// Sends the root's values to all ranks. `what` is a string literal: the purpose of the calls. On the CPU the values
// have arrived when it returns; a GPU's default stream waits for them. Tapes that read the tensors before stay valid,
// because the values sent before each forward are usually equal.
void broadcast_tensors(ProcessGroup& group, const std::vector<NamedTensor>& tensors, const char* what, int root = 0);
// The same for new values: a backward over a tape that read the old ones throws.
void replace_by_roots(ProcessGroup& group, const std::vector<NamedTensor>& tensors, const char* what, int root = 0);

}  // namespace lockstep
