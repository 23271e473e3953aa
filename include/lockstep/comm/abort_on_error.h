// What one rank alone throws, told to the others: a job ends as by MPI_Abort(), and every rank knows the reason.
//
//   abort_on_error(*group, [&] {
//     for (auto& [inputs, labels] : loader) { ... loss.backward(); sgd.step(); }
//   });
//
// Without it a rank that throws between two collectives leaves the group as its pointer goes out of scope, and the
// others learn no more than that it has left.
#pragma once

#include <exception>

#include "lockstep/comm/process_group.h"
#include "lockstep/core/error.h"

#pragma GCC visibility push(default)
namespace lockstep {

// group.abort() with the text of `error`, which is not null, where the group has more than this rank. A group of one
// goes on.
void abort_for(ProcessGroup& group, const std::exception_ptr& error);

// Returns call(), which may be of any length: a loop over steps, a whole training. What it throws on this rank, of any
// type, passes on, and ends the group: the other ranks throw PeerLost with "rank R aborted the group: " and its text
// from the call that they are in, or from their next one. Where the group is over already, that changes nothing: its
// first error stays. A PeerLost of another group, a part of this one, say, ends this one as well. An error that all
// ranks throw together (MismatchError, say) stays each rank's own.
template <typename Call>
auto abort_on_error(ProcessGroup& group, const Call& call) {
  try {
    return call();
  } catch (...) {
    abort_for(group, std::current_exception());
    throw;
  }
}

}  // namespace lockstep
#pragma GCC visibility pop
