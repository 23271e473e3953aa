#include "src/comm/group/call_chain.h"

#include <utility>

#include "lockstep/core/error.h"
#include "src/comm/call/continuation.h"

namespace lockstep {

Work ProcessGroup::Impl::Chain::follow(const Work& first, Continuation next, bool makes_call) {
  // A continuation may drop the last other reference.
  const std::shared_ptr<ProcessGroup> owner = group_.lock();
  if (!owner) throw InvalidArgument("Work::then: this Work's process group was destroyed");
  Impl* const group = owner->impl_.get();
  group->check_usable("then", device_, true);
  Operation operation;
  operation.timeout = group->timeout;
  operation.chained = {std::move(next), group, makes_call};
  if (makes_call && !group->is_capturing) {  // a call in a graph counts when the graph is launched
    ++group->sequence;
    operation.flight = group->recorded->recorder.reserve(group->sequence);
  }
  operation.signature.sequence = group->sequence;
  try {
    return Work(group->backend(device_, "then").start_chained(operation, first),
                group->chains[static_cast<std::size_t>(device_)]);
  } catch (...) {
    flight::note_failed(operation.flight);
    throw;
  }
}

void ProcessGroup::Impl::check_continuation(const RunningContinuation& running, std::string_view what,
                                            bool is_async_collective) const {
  const auto refuse = [&](std::string_view why) {
    throw InvalidArgument("{} on rank {}: called in a continuation of Work::then(), {}", what, place.rank, why);
  };
  if (running.group != this) refuse("which makes no calls of another group");
  if (!running.makes_call) refuse("which only computes: one that returns the Work of its call makes one");
  if (!is_async_collective)
    refuse("where only an asynchronous collective can be called; chain further calls with then() on its Work");
  if (running.has_made_it) refuse("which has made its one call: chain the next with then() on its Work");
}

Work ProcessGroup::last_call(DeviceKind device) const {
  return Work({}, impl_->chains[static_cast<std::size_t>(device)]);
}

}  // namespace lockstep
