#include "src/reduce/passes/join_loop.h"

#include <utility>

#include "lockstep/core/log.h"
#include "src/core/base/message_text.h"

namespace lockstep {

JoinLoop::JoinLoop(ProcessGroup& group, Shares& shares, const char* wrapper, Follower follower)
    : group_(group), shares_(shares), wrapper_(wrapper), follower_(std::move(follower)) {}

void JoinLoop::run(const std::function<void()>& train, const JoinOptions& options) {
  shares_.begin_join(options);
  pass_error_ = nullptr;
  struct Joining {
    Shares& shares;
    ~Joining() { shares.end_join(); }
  } const joining{shares_};
  try {
    train();
    follow_others(options.after_step);
  } catch (...) {
    end_by(std::current_exception());
    throw;
  }
}

void JoinLoop::follow_others(const std::function<void()>& after_step) {
  for (;;) {
    const Shares::Act act = shares_.announce(Shares::Act::kNothing, follower_.next_step());
    if (act == Shares::Act::kNothing) return;
    if (act == Shares::Act::kThrow) rethrow_pass_error();
    if (act == Shares::Act::kBuffers) {
      follower_.follow_buffers(shares_.first_with_data());
      continue;
    }
    try {
      pass_error_ = nullptr;
      follower_.follow_pass();
    } catch (...) {
      if (!pass_error_) throw;
      continue;
    }
    if (after_step) after_step();
  }
}

void JoinLoop::rethrow_pass_error() const {
  LOCKSTEP_CHECK(pass_error_, "join: rank {} throws an error that this rank did not get", shares_.first_with_data());
  std::rethrow_exception(pass_error_);
}

void JoinLoop::end_by(const std::exception_ptr& error) {
  if (shares_.has_ended_join() || group_.world_size() == 1) return;
  if (!pass_error_ || error != pass_error_) return group_.abort(exception_text(error));
  try {
    shares_.announce(Shares::Act::kThrow, follower_.next_step());
  } catch (const std::exception& other) {  // the other ranks throw it as well
    log::debug("{}::join: {}", wrapper_, other.what());
  }
}

}  // namespace lockstep
