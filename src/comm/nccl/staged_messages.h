// Messages of GPU memory, through pinned host memory and a backend for host memory.
//
// NCCL's own messages have no tags, cannot be received from any rank, and deadlock if the orders of two ranks differ.
// Here the device copies the data to pinned memory, on a separate stream, after the current work of the default stream;
// when that is done, a thread, the courier, passes it to the carrier. A received message arrives in pinned memory; the
// thread that waits for the Work, or polls it, then queues the copy to the device.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "lockstep/comm/backend.h"
#include "lockstep/core/device.h"

namespace lockstep::nccl {

// Any thread may call any function.
class StagedMessages : public CompletionQueue {
 public:
  // `carrier`, which supports messages, is used until stop(), and leaves soon after it: then it releases the pinned
  // memory.
  StagedMessages(const Place& place, Device& device, Backend& carrier);
  ~StagedMessages() override;

  static Work send(const std::shared_ptr<StagedMessages>& self, const Message& message);
  static Work receive(const std::shared_ptr<StagedMessages>& self, const Message& message);

  bool done(std::uint64_t ticket) override;
  void wait(std::uint64_t ticket) override;
  // For a send, returns at once: `stream` may overwrite the memory when the device has copied it. For a receive, blocks
  // until the message has arrived on this machine, but not until it is on the device.
  void stream_wait(std::uint64_t ticket, Stream& stream) override;

  // Returns when the courier has nothing under way.
  void await_handover();
  // Messages that have not been passed to the carrier, or not been received, fail.
  void stop() noexcept;

 private:
  enum class Stage { kLeaving, kCarried, kFailed };  // kLeaving: a send that the courier has
  struct Staged {
    Message message;
    bool is_receive;
    Buffer memory;  // pinned
    // For a send: the device has copied it. For a receive: first the place in the default stream after which to copy,
    // then: the device has copied it.
    std::unique_ptr<Event> event;
    Stage stage;
    bool is_on_device = false;  // its copy is queued
    Work carried = {};
    int sender = kAnyRank;
    std::exception_ptr failure = nullptr;

    std::string describe() const { return is_receive ? describe_receive(message) : describe_send(message); }
    Message in_host_memory();
  };
  using Handle = std::shared_ptr<Staged>;

  Handle make(const Message& message, bool is_receive);
  std::uint64_t add(Handle staged);
  void retire();
  Handle find(std::uint64_t ticket);
  void serve();
  void hand_over(Staged& staged);
  bool is_handed_over(const Staged& staged);
  void copy_in(Staged& staged);
  bool is_copied(const Staged& staged);
  void await_copy(const Staged& staged);
  void complete(std::uint64_t ticket);
  template <typename Step> auto or_fail(Staged& staged, Step&& step);
  void fail(Staged& staged) noexcept;
  template <typename Step> void abort_carrier_on_error(const Staged& staged, Step&& step);
  void await_last_copy(const Staged& staged);

  const Place place_;
  Device& device_;
  const std::unique_ptr<Stream> out_, in_;  // two, so that received data does not wait for data to send
  std::mutex carrier_mutex_;                // held in calls of waiting threads, which may outlast the carrier
  Backend* carrier_;                        // null: stopped

  std::mutex mutex_;  // guards the members below; never held while waiting for a peer or the device
  std::condition_variable changed_;
  std::map<std::uint64_t, Handle> pending_;  // incomplete, or failed
  std::deque<Handle> outbox_;                // for the courier, which works on the first
  std::uint64_t last_ticket_ = 0;
  std::chrono::steady_clock::time_point last_copies_until_{};  // set by the first failure
  bool stop_ = false;
  std::thread courier_;  // started by the first send
};

}  // namespace lockstep::nccl
