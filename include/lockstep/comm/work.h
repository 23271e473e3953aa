// Work: one asynchronous collective or message. A small handle that is copied freely; a collective's allocates nothing.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

#pragma GCC visibility push(default)
namespace lockstep {

class Stream;
class Work;

// What runs behind a call, see Work::then(). Queues a GPU's kernels on the stream that it is given; on the CPU it
// computes.
using Continuation = std::function<Work(Stream&)>;

// A group's side of then().
class CallChain {
 public:
  virtual ~CallChain() = default;
  // `makes_call`: the continuation makes one call, and its place in the group's order is taken now.
  virtual Work follow(const Work& first, Continuation next, bool makes_call) = 0;
};

// Where a backend's operations complete: collectives in the order in which they were issued. A Work is a ticket to it.
class CompletionQueue {
 public:
  virtual ~CompletionQueue() = default;
  virtual bool done(std::uint64_t ticket) = 0;  // never blocks; throws the operation's error if it failed
  virtual void wait(std::uint64_t ticket) = 0;  // blocks the host; see Work::wait
  // Work queued on `stream` from now on runs after the operation. On the CPU the same as wait().
  virtual void stream_wait(std::uint64_t ticket, Stream& stream) = 0;
  // See wait_any() below; here it asks done() again and again.
  virtual std::optional<std::size_t> wait_any(std::span<const std::uint64_t> tickets,
                                              std::chrono::steady_clock::time_point until);
};

// Any thread may use a Work. The buffers of the call belong to it until it is done.
class Work {
 public:
  Work() = default;  // done already
  Work(std::shared_ptr<CompletionQueue> queue, std::uint64_t ticket) : queue_(std::move(queue)), ticket_(ticket) {}
  Work(Work call, std::shared_ptr<CallChain> chain)
      : queue_(std::move(call.queue_)), ticket_(call.ticket_), chain_(std::move(chain)) {}

  bool done() const { return !queue_ || queue_->done(ticket_); }

  // Blocks until the operation is complete on the host. Throws what went wrong (MismatchError, PeerLost,
  // TimeoutError); every operation has a deadline, so wait() always returns.
  void wait() const {
    if (queue_) queue_->wait(ticket_);
  }

  // GPU: returns at once, and `stream` waits on the device. CPU: blocks.
  void stream_wait(Stream& stream) const {
    if (queue_) queue_->stream_wait(ticket_, stream);
  }

  // Of a collective: `next(stream)` runs behind this call, and behind all that was issued since; the caller goes on.
  // Where the backend has a thread (host, mpi) it runs there; with nccl the caller runs it at once, and its kernels
  // wait on `stream`. The Work that comes back is done when `next` is, and what it started.
  //   - next returns nothing: it computes, for the calls that the caller issues after this one.
  //   - next returns a Work: of the one asynchronous collective, of the same group, that it makes. That call's number
  //   is the next one now,
  //     so that all ranks keep one order whenever it runs; its arguments are next's to decide.
  // A call that fails fails all that is chained behind it, which does not run. What `next` throws, one call too many or
  // too few, or a wait in it for work that comes later ends the group for all ranks. Counts as a call of the group: the
  // same on all ranks, by the thread that makes the group's calls; not in a continuation. Of a Work that is of no
  // collective: InvalidArgument. Captures of two pointers allocate nothing. What `next` holds goes when it has ended,
  // or will not run; with the last reference to the group, the group ends there.
  template <typename Next>
  Work then(Next next) const {
    if constexpr (std::is_convertible_v<std::invoke_result_t<Next&, Stream&>, Work>)
      return follow(std::move(next), true);
    else
      return follow(
          [next = std::move(next)](Stream& stream) mutable {
            next(stream);
            return Work();
          },
          false);
  }

 private:
  friend std::optional<std::size_t> wait_any(std::span<const Work> works, std::chrono::milliseconds timeout);
  Work follow(Continuation next, bool makes_call) const;

  std::shared_ptr<CompletionQueue> queue_;
  std::uint64_t ticket_ = 0;
  std::shared_ptr<CallChain> chain_;  // null: of no collective
};

// Blocks until one of them is done and returns its number, the lowest of several; none after `timeout`, and then all go
// on: no group ends by it. Throws the error of one that failed. Of messages in one group the rank that a message is to
// come from, or to go to, is missed as soon as it has left, whichever of them that is. Throws InvalidArgument for no
// work at all.
std::optional<std::size_t> wait_any(std::span<const Work> works, std::chrono::milliseconds timeout);

}  // namespace lockstep
#pragma GCC visibility pop
