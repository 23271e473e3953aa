#include "src/comm/call/continuation.h"

#include <fmt/format.h>

#include "lockstep/comm/backend.h"
#include "lockstep/core/error.h"
#include "src/core/base/message_text.h"

namespace lockstep {

namespace {

thread_local RunningContinuation* running = nullptr;

}  // namespace

RunningContinuation* running_continuation() { return running; }

std::string describe_chained(const Operation& operation) {
  return fmt::format("{} #{}", operation.chained.makes_call ? "the follower" : "the computation after call",
                     operation.signature.sequence);
}

Work run_chained(const Operation& operation, Stream& stream) {
  const ChainedWork& chained = operation.chained;
  RunningContinuation state{.group = chained.group,
                            .number = operation.signature.sequence,
                            .flight = operation.flight,
                            .makes_call = chained.makes_call};
  struct Scope {
    explicit Scope(RunningContinuation* now) : before(running) { running = now; }
    ~Scope() { running = before; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    RunningContinuation* const before;
  };
  Work made;
  {
    const Scope scope(&state);
    made = chained.run(stream);
  }
  if (state.makes_call && !state.has_made_it)
    throw InvalidArgument(
        "{} made no call: a function of Work::then() that returns a Work makes one asynchronous collective; one that "
        "only computes returns nothing",
        describe_chained(operation));
  return made;
}

Work run_chained_or_end(const Operation& operation, Stream& stream, LocalGroupError& group_error) {
  try {
    return run_chained(operation, stream);
  } catch (...) {
    group_error.declare(GroupErrorKind::kFailed, fmt::format("rank 0 cannot go on: {}: {}", describe_chained(operation),
                                                             exception_text(std::current_exception())));
    throw_group_error(group_error.get(), describe_chained(operation));
  }
}

Work Backend::start_chained(const Operation& operation, const Work& first) {
  first.wait();
  return run_chained(operation, cpu_device().default_stream());
}

Work Work::follow(Continuation next, bool makes_call) const {
  if (!chain_)
    throw InvalidArgument(
        "Work::then: this Work does not belong to a collective: call then() on a collective's Work, or use "
        "ProcessGroup::compute_async()");
  return chain_->follow(*this, std::move(next), makes_call);
}

}  // namespace lockstep
