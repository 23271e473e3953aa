// Work: one asynchronous collective or message. A small handle that is copied freely; a collective's allocates nothing.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#pragma GCC visibility push(default)
namespace lockstep {

class Stream;

// Where a backend's operations complete: collectives in the order in which they were issued. A Work is a ticket to it.
class CompletionQueue {
 public:
  virtual ~CompletionQueue() = default;
  virtual bool done(std::uint64_t ticket) = 0;  // never blocks; throws the operation's error if it failed
  virtual void wait(std::uint64_t ticket) = 0;  // blocks the host; see Work::wait
  // Work queued on `stream` from now on runs after the operation. On the CPU the same as wait().
  virtual void stream_wait(std::uint64_t ticket, Stream& stream) = 0;
  // See wait_any() below; here it asks done() again and again.
  virtual std::optional<std::size_t> wait_any(std::span<const std::uint64_t> tickets, std::chrono::steady_clock::time_point until);
};

// Any thread may use a Work. The buffers of the call belong to it until it is done.
class Work {
 public:
  Work() = default;  // done already
  Work(std::shared_ptr<CompletionQueue> queue, std::uint64_t ticket) : queue_(std::move(queue)), ticket_(ticket) {}

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

 private:
  friend std::optional<std::size_t> wait_any(std::span<const Work> works, std::chrono::milliseconds timeout);
  std::shared_ptr<CompletionQueue> queue_;
  std::uint64_t ticket_ = 0;
};

// Blocks until one of them is done and returns its number, the lowest of several; none after `timeout`, and then all go on: no group ends
// by it. Throws the error of one that failed. Of messages in one group the rank that a message is to come from, or to go to, is missed as
// soon as it has left, whichever of them that is. Throws InvalidArgument for no work at all.
std::optional<std::size_t> wait_any(std::span<const Work> works, std::chrono::milliseconds timeout);

}  // namespace lockstep
#pragma GCC visibility pop
