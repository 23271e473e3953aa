// join() of a wrapper: ranks without data take part in the passes of the others until no rank has data.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>

#include "lockstep/comm/process_group.h"
#include "lockstep/core/error.h"
#include "src/reduce/passes/shares.h"

namespace lockstep {

// The actions of a rank without data in its wrapper.
struct Follower {
  std::function<std::uint64_t()> next_step;      // number of the next reduced pass, from 1
  std::function<void()> follow_pass;             // takes part in a backward of the other ranks
  std::function<void(int root)> follow_buffers;  // takes part in a forward that sends buffers
};

class JoinLoop {
 public:
  // `wrapper` names the wrapper in messages. The references must outlive it.
  JoinLoop(ProcessGroup& group, Shares& shares, const char* wrapper, Follower follower);

  // Runs `train`, then follows the others. Collective.
  void run(const std::function<void()>& train, const JoinOptions& options);

  // `step` throws on all ranks or on none, unless the group is over.
  template <typename Step> auto noting_error(Step&& step) {
    try {
      return step();
    } catch (const Error&) {  // others, such as exhausted memory, occur on this rank only
      pass_error_ = std::current_exception();
      throw;
    }
  }
  void forget_error() { pass_error_ = nullptr; }  // a forward or a pass begins

 private:
  // An error that all ranks get in a pass does not end join() while the ranks with data may catch it and continue; they
  // announce it if it does.
  void follow_others(const std::function<void()>& after_step);
  [[noreturn]] void rethrow_pass_error() const;
  // Called in a handler of an exception that leaves `train` or after_step. If all ranks have this error, the group
  // stays usable and the ranks that follow this one are informed. Any other exception, such as one thrown after
  // catching that one, is this rank's only and ends the group.
  void end_by(const std::exception_ptr& error);

  ProcessGroup& group_;
  Shares& shares_;
  const char* const wrapper_;
  const Follower follower_;
  std::exception_ptr pass_error_;  // of the last pass, if all ranks had it
};

}  // namespace lockstep
