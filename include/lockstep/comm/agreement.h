// An error of one rank becomes an error of all ranks, so that no rank waits for one that has given up.
//
// Choose by the moment at which a rank finds its error:
//   before the ranks begin something together   refuse_on_all_ranks(), check_same_on_all_ranks(), on_all_ranks()
//   between collective calls, at any time       abort_on_error(), abort_and_throw()
// The first three are collective calls of all ranks, cost one or two small messages, and leave the group usable. The
// last two need no other rank, and end the group.
#pragma once

#include <concepts>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/core/error.h"

#pragma GCC visibility push(default)
namespace lockstep {

// The group of a call: a ProcessGroup, or null for a job of one process. Does not own the group.
class GroupRef {
 public:
  GroupRef(ProcessGroup& group) : group_(&group) {}                              // NOLINT: implicit
  GroupRef(ProcessGroup* group) : group_(group) {}                               // NOLINT: implicit
  GroupRef(const std::shared_ptr<ProcessGroup>& group) : group_(group.get()) {}  // NOLINT: implicit
  GroupRef(std::nullptr_t) {}                                                    // NOLINT: implicit

  ProcessGroup* get() const { return group_; }
  bool has_several() const { return group_ != nullptr && group_->world_size() > 1; }
  int rank() const { return group_ == nullptr ? 0 : group_->rank(); }
  int world_size() const { return group_ == nullptr ? 1 : group_->world_size(); }

 private:
  ProcessGroup* group_ = nullptr;
};

// Use it when a rank can put its objection into words without throwing: an option that is invalid here. Collective,
// blocking. `refusal` is this rank's objection, or "". Throws InvalidArgument on all ranks if any rank objects, with
// `operation`, the number of the first such rank (not in a group of one), and its objection.
void refuse_on_all_ranks(GroupRef group, std::string_view operation, const std::string& refusal);

// Use it when all ranks must have the same settings, model or data. Collective, blocking. Each of `lines` is a noun
// phrase, "optimizer SGD". Throws MismatchError, the same on all ranks, for the first line in which a rank differs from
// rank 0: "<operation>: the ranks <difference>: rank 1 has optimizer Adam at position 0, rank 0 has optimizer SGD".
void check_same_on_all_ranks(GroupRef group, std::string_view operation, const std::vector<std::string>& lines,
                             std::string_view difference);

// Use it when each rank does the same thing by itself and any of them may fail: opening a file, building a model.
// Collective, blocking: returns when all ranks have returned from call(), which may return nothing. If call() throws
// on any rank, all ranks throw: the failed rank its own exception, the others "rank R: " and its text, with R the first
// failed rank, as InvalidArgument, FileError or Error, whichever the exception was. The group stays usable. call() must
// not skip collective calls of this group by throwing between them: abort_on_error() is for that.
template <std::invocable Call> auto on_all_ranks(GroupRef group, const Call& call);

// The same for a call that returns a text: the texts of all ranks, by rank. `purpose` names the call in messages, in at
// most 23 characters; ranks in calls of different purposes get a MismatchError.
std::vector<std::string> gather_on_all_ranks(GroupRef group, const std::function<std::string()>& call,
                                             const Purpose& purpose = {"results of all ranks"});

// Use it around a longer piece of work with collective calls in it, such as a training loop:
//
//   abort_on_error(*group, [&] {
//     for (auto& [inputs, labels] : loader) { ... loss.backward(); sgd.step(); }
//   });
//
// Returns call(). An exception of any type passes through and ends the group, as MPI_Abort() ends a job: the other
// ranks throw PeerLost with "rank R aborted the group: " and its text from the call that they are in, or from their
// next one. If the group is over already, its first error stays. A PeerLost of another group, such as a part of this
// one, ends this group as well. Not collective; does not wait. Without it, the other ranks learn only that a rank left.
template <std::invocable Call> auto abort_on_error(GroupRef group, const Call& call);

// The same for an exception that the caller has caught, which must not be null: ends the group with its text. A group
// of one rank stays usable.
void abort_for(GroupRef group, const std::exception_ptr& error);

// Use it when one rank finds between collective calls that the training cannot go on. Ends the group with `reason`, and
// throws InvalidArgument with it. Not collective; does not wait. A group of one rank stays usable.
[[noreturn]] void abort_and_throw(GroupRef group, const std::string& reason);

// -- Implementation of the templates

template <std::invocable Call> auto on_all_ranks(GroupRef group, const Call& call) {
  if constexpr (std::is_void_v<std::invoke_result_t<Call>>) {
    gather_on_all_ranks(group, [&] {
      call();
      return std::string();
    });
  } else {
    std::optional<std::invoke_result_t<Call>> result;
    gather_on_all_ranks(group, [&] {
      result.emplace(call());
      return std::string();
    });
    return *std::move(result);
  }
}

template <std::invocable Call> auto abort_on_error(GroupRef group, const Call& call) {
  try {
    return call();
  } catch (...) {
    abort_for(group, std::current_exception());
    throw;
  }
}

}  // namespace lockstep
#pragma GCC visibility pop
