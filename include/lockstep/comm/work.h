// Work: a handle to one asynchronous collective or message. It is small and freely copied; a collective's needs no
// allocation.
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

// A function that Work::then() runs after a call. It queues GPU kernels on the stream that it receives; on the CPU it
// computes.
using Continuation = std::function<Work(Stream&)>;

// The group's implementation of Work::then().
class CallChain {
 public:
  virtual ~CallChain() = default;
  // If `makes_call`, the continuation makes one call, whose place in the group's order is reserved now.
  virtual Work follow(const Work& first, Continuation next, bool makes_call) = 0;
};

// The queue in which a backend's operations complete, collectives in the order of issue. A Work holds a ticket of it.
class CompletionQueue {
 public:
  virtual ~CompletionQueue() = default;
  virtual bool done(std::uint64_t ticket) = 0;  // never blocks; throws the operation's error if it failed
  virtual void wait(std::uint64_t ticket) = 0;  // blocks the host; see Work::wait()
  // Work queued on `stream` from now on runs after the operation. On the CPU this is wait().
  virtual void stream_wait(std::uint64_t ticket, Stream& stream) = 0;
  // See wait_any() below. The default polls done().
  virtual std::optional<std::size_t> wait_any(std::span<const std::uint64_t> tickets,
                                              std::chrono::steady_clock::time_point until);
};

// Any thread may use a Work. The operation owns its buffers until it is done.
class Work {
 public:
  Work() = default;  // already done
  Work(std::shared_ptr<CompletionQueue> queue, std::uint64_t ticket) : queue_(std::move(queue)), ticket_(ticket) {}
  Work(Work call, std::shared_ptr<CallChain> chain)
      : queue_(std::move(call.queue_)), ticket_(call.ticket_), chain_(std::move(chain)) {}

  bool done() const { return !queue_ || queue_->done(ticket_); }

  // Blocks until the operation has completed on the host. Throws the operation's error (MismatchError, PeerLost,
  // TimeoutError). Every operation has a deadline, so wait() always returns.
  void wait() const {
    if (queue_) queue_->wait(ticket_);
  }

  // GPU: returns at once, and `stream` waits on the device. CPU: blocks.
  void stream_wait(Stream& stream) const {
    if (queue_) queue_->stream_wait(ticket_, stream);
  }

  // Runs next(stream) after this collective and all calls issued since; returns at once. With a backend that has a
  // thread (host, mpi), `next` runs on that thread; with nccl the caller runs it at once, and its kernels wait on
  // `stream`. The returned Work is done when `next` and the call that it starts are done.
  // - If `next` returns nothing, it computes data for calls that the caller issues later.
  // - If `next` returns a Work, that must be the Work of the one asynchronous collective that it makes, on the same
  //   group. The call's number is reserved now, so that all ranks keep one order no matter when `next` runs; `next`
  //   chooses its arguments.
  //
  // If a call fails, all continuations chained to it fail, and do not run. The group ends on all ranks if `next`
  // throws, makes too many or too few calls, or waits for work that comes later. then() counts as a call of the group:
  // all ranks make it, on the thread that makes the group's calls, and not within a continuation. Throws
  // InvalidArgument if this Work is not a collective's. Captures of up to two pointers need no allocation. The captures
  // of `next` are destroyed when it has run or will not run; if they hold the last reference to the group, the group
  // ends there.
  template <typename Next> Work then(Next next) const {
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
  std::shared_ptr<CallChain> chain_;  // null: not the Work of a collective
};

// Blocks until one of the works is done, and returns its index, the lowest if several are done; returns nothing after
// `timeout`, in which case all of them go on. Throws the error of one that failed. For messages of one group: throws as
// soon as the source or destination of any of them has left. Throws InvalidArgument if `works` is empty.
std::optional<std::size_t> wait_any(std::span<const Work> works, std::chrono::milliseconds timeout);

}  // namespace lockstep
#pragma GCC visibility pop
