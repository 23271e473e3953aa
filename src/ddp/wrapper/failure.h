// What one rank alone throws, told to the others.
#pragma once

#include "lockstep/comm/abort_on_error.h"

namespace lockstep {

// abort_on_error(), and call() alone where the group is null: a job of one.
template <typename Call>
auto or_end_group(ProcessGroup* group, const Call& call) {
  return group == nullptr ? call() : abort_on_error(*group, call);
}

}  // namespace lockstep
