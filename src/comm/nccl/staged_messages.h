// Messages of a GPU's memory, by way of pinned host memory and a backend of the host's.
//
// NCCL's own have no tags, cannot be received from any rank, and block each other for good when two ranks' orders
// differ. Here the device copies what is sent to pinned memory, on a stream of its own, behind what the default stream
// holds by then; a courier, a thread, hands it to the carrier when that is done. A received message comes to pinned
// memory, and the thread that waits for the Work, or asks for it, queues the copy to the device when it is there.
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

// Any thread may call any of it.
class StagedMessages : public CompletionQueue {
 public:
  // `carrier`, with messages, is used until stop(), and leaves soon after that: then it lets go of the pinned memory.
  StagedMessages(const Place& place, Device& device, Backend& carrier);
  ~StagedMessages() override;

  static Work send(const std::shared_ptr<StagedMessages>& self, const Message& message);
  static Work receive(const std::shared_ptr<StagedMessages>& self, const Message& message);

  bool done(std::uint64_t ticket) override;
  void wait(std::uint64_t ticket) override;
  // Of a send returns at once: `stream` may overwrite the memory when the device has copied it. Of a receive blocks
  // until the message has come to this machine, and not until the device has it.
  void stream_wait(std::uint64_t ticket, Stream& stream) override;

  // Returns when the courier has nothing under way.
  void await_handover();
  // Messages that have not been handed over, or not been received, fail.
  void stop() noexcept;

 private:
  enum class Stage { kLeaving, kCarried, kFailed };  // the first: of a send that the courier has
  struct Staged {
    Message message;
    bool is_receive;
    Buffer memory;  // pinned
    // Of a send: the device has copied it. Of a receive: the mark in the default stream to copy behind, then: the
    // device has copied it.
    std::unique_ptr<Event> event;
    Stage stage;
    bool is_on_device = false;  // its copy was queued
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
  void bring_in(Staged& staged);
  bool is_copied(const Staged& staged);
  void await_copy(const Staged& staged);
  void complete(std::uint64_t ticket);
  template <typename Step>
  auto or_fail(Staged& staged, Step&& step);
  void fail(Staged& staged) noexcept;
  template <typename Step>
  void abort_carrier_on_error(const Staged& staged, Step&& step);
  void await_last_copy(const Staged& staged);

  const Place place_;
  Device& device_;
  const std::unique_ptr<Stream> out_, in_;  // two: what has come does not wait for what is to go
  std::mutex carrier_mutex_;                // of the calls of waiting threads, which may last longer than the carrier
  Backend* carrier_;                        // null: stopped

  std::mutex mutex_;  // guards what follows; never held while waiting for a peer or the device
  std::condition_variable changed_;
  std::map<std::uint64_t, Handle> pending_;  // not complete yet, or failed
  std::deque<Handle> outbox_;                // for the courier, the first is under way
  std::uint64_t last_ticket_ = 0;
  std::chrono::steady_clock::time_point last_copies_until_{};  // set by the first failure
  bool stop_ = false;
  std::thread courier_;  // from the first send on
};

}  // namespace lockstep::nccl
