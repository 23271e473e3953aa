#include "src/comm/nccl/staged_messages.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "src/comm/call/group_gone.h"
#include "src/comm/flight/flight_recorder.h"
#include "src/comm/nccl/nap.h"

namespace lockstep::nccl {

namespace {

using Clock = std::chrono::steady_clock;

// How long the copy of a failed message may take to end.
constexpr auto kLastCopies = std::chrono::seconds(1);

// Never frees the memory: the device may still write to it.
void leak(Buffer memory) {
  static auto& mutex = *new std::mutex;
  static auto& kept = *new std::vector<Buffer>;
  const std::lock_guard lock(mutex);
  kept.push_back(std::move(memory));
}

}  // namespace

StagedMessages::StagedMessages(const Place& place, Device& device, Backend& carrier)
    : place_(place), device_(device), out_(device.new_stream()), in_(device.new_stream()), carrier_(&carrier) {}

StagedMessages::~StagedMessages() { stop(); }

Message StagedMessages::Staged::in_host_memory() {
  Message carried = message;
  carried.data = memory.data();
  if (is_receive) carried.sender = &sender;
  return carried;
}

// Records an event on the default stream.
StagedMessages::Handle StagedMessages::make(const Message& message, bool is_receive) {
  auto staged = std::make_shared<Staged>(
      Staged{message, is_receive, {}, nullptr, is_receive ? Stage::kCarried : Stage::kLeaving});
  Stream& stream = device_.default_stream();
  if (stream.is_capturing())
    throw InvalidArgument(
        "{} on rank {}: a graph is being recorded, and a message would go once, and not with every launch",
        staged->describe(), place_.rank);
  staged->memory = device_.allocate_pinned(message.bytes());
  staged->event = device_.new_event();
  staged->event->record(stream);
  return staged;
}

std::uint64_t StagedMessages::add(Handle staged) {
  pending_[++last_ticket_] = std::move(staged);
  return last_ticket_;
}

// Frees the memory of complete messages for whose Works no thread waits.
void StagedMessages::retire() {
  for (;;) {
    std::uint64_t oldest = 0;
    {
      const std::lock_guard lock(mutex_);
      if (pending_.empty()) return;
      oldest = pending_.begin()->first;
    }
    try {
      if (!done(oldest)) return;
    } catch (const std::exception&) {  // the thread that waits for it gets the error
      return;
    }
  }
}

Work StagedMessages::send(const std::shared_ptr<StagedMessages>& self, const Message& message) {
  StagedMessages& messages = *self;
  messages.carrier_->throw_if_over([&] { return describe_send(message); });
  messages.retire();
  const Handle staged = messages.make(message, false);
  const std::lock_guard lock(messages.mutex_);
  if (!messages.courier_.joinable()) messages.courier_ = std::thread([&messages] { messages.serve(); });
  staged->event->stream_wait(*messages.out_);
  if (message.bytes() != 0) messages.device_.copy(staged->memory.data(), message.data, message.bytes(), *messages.out_);
  staged->event->record(*messages.out_);
  staged->is_on_device = true;
  const std::uint64_t ticket = messages.add(staged);
  messages.outbox_.push_back(staged);
  messages.changed_.notify_all();
  return Work(self, ticket);
}

Work StagedMessages::receive(const std::shared_ptr<StagedMessages>& self, const Message& message) {
  StagedMessages& messages = *self;
  messages.retire();
  const Handle staged = messages.make(message, true);
  staged->carried = messages.carrier_->receive(staged->in_host_memory());
  const std::lock_guard lock(messages.mutex_);
  return Work(self, messages.add(staged));
}

StagedMessages::Handle StagedMessages::find(std::uint64_t ticket) {
  const std::lock_guard lock(mutex_);
  const auto found = pending_.find(ticket);
  if (found == pending_.end()) return nullptr;
  if (found->second->stage == Stage::kFailed) std::rethrow_exception(found->second->failure);
  return found->second;
}

// An exception of `step` fails the message.
template <typename Step> auto StagedMessages::or_fail(Staged& staged, Step&& step) {
  try {
    return step();
  } catch (...) {
    fail(staged);
    throw;
  }
}

bool StagedMessages::done(std::uint64_t ticket) {
  const Handle staged = find(ticket);
  if (!staged) return true;
  if (!is_handed_over(*staged)) return false;
  const bool is_done = or_fail(*staged, [&] {
    if (!staged->carried.done()) return false;
    copy_in(*staged);
    return is_copied(*staged);
  });
  if (is_done) complete(ticket);
  return is_done;
}

void StagedMessages::wait(std::uint64_t ticket) {
  const Handle staged = find(ticket);
  if (!staged) return;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return staged->stage != Stage::kLeaving; });  // bounded by the courier's deadline
    if (staged->stage == Stage::kFailed) std::rethrow_exception(staged->failure);
  }
  or_fail(*staged, [&] {
    staged->carried.wait();
    copy_in(*staged);
    await_copy(*staged);
  });
  complete(ticket);
}

void StagedMessages::stream_wait(std::uint64_t ticket, Stream& stream) {
  const Handle staged = find(ticket);
  if (!staged) return;
  if (staged->is_receive) {
    or_fail(*staged, [&] {
      staged->carried.wait();
      copy_in(*staged);
    });
  }
  const std::lock_guard lock(mutex_);
  staged->event->stream_wait(stream);
}

// The first thread that finds the received message here queues its copy.
void StagedMessages::copy_in(Staged& staged) {
  abort_carrier_on_error(staged, [&] {
    const std::lock_guard lock(mutex_);
    if (staged.stage == Stage::kFailed) std::rethrow_exception(staged.failure);
    if (!staged.is_receive || staged.is_on_device) return;
    if (stop_) throw group_gone();
    const Message& message = staged.message;
    staged.is_on_device = true;
    staged.event->stream_wait(*in_);
    if (message.bytes() != 0) device_.copy(message.data, staged.memory.data(), message.bytes(), *in_);
    staged.event->record(*in_);
    if (message.sender != nullptr) *message.sender = staged.sender;
  });
}

bool StagedMessages::is_handed_over(const Staged& staged) {
  const std::lock_guard lock(mutex_);
  if (staged.stage == Stage::kFailed) std::rethrow_exception(staged.failure);
  return staged.stage != Stage::kLeaving;
}

bool StagedMessages::is_copied(const Staged& staged) {
  const std::lock_guard lock(mutex_);
  return staged.event->done();
}

void StagedMessages::await_copy(const Staged& staged) {
  const auto deadline = Clock::now() + staged.message.timeout;
  const auto look = [&] {
    if (is_copied(staged)) return true;
    if (Clock::now() <= deadline) return false;
    throw TimeoutError(
        "{}: the GPU of rank {} has not copied the data {} host memory in {:.1f} s: is it busy with other work?",
        staged.describe(), place_.rank, staged.is_receive ? "from" : "to",
        std::chrono::duration<double>(staged.message.timeout).count());
  };
  for (int round = 0;; ++round) {
    bool is_there = false;
    abort_carrier_on_error(staged, [&] { is_there = look(); });
    if (is_there) return;
    {
      const std::lock_guard lock(carrier_mutex_);
      if (carrier_ == nullptr) throw group_gone();
      carrier_->throw_if_over([&] { return staged.describe(); });
    }
    nap(round);
  }
}

void StagedMessages::complete(std::uint64_t ticket) {
  const std::lock_guard lock(mutex_);
  pending_.erase(ticket);
}

// Tells the other ranks of a failure of the device. (They know of a failure of the carrier.)
template <typename Step> void StagedMessages::abort_carrier_on_error(const Staged& staged, Step&& step) {
  try {
    step();
  } catch (const PeerLost&) {  // they know already, or this rank is leaving
    throw;
  } catch (...) {
    flight::note_failed(staged.message.flight);
    const std::lock_guard lock(carrier_mutex_);
    if (carrier_ != nullptr) carrier_->abort(flight::what_is_handled());
    throw;
  }
}

// Stores the exception that is being handled.
void StagedMessages::fail(Staged& staged) noexcept {
  try {
    await_last_copy(staged);
  } catch (const std::exception&) {  // the device itself has failed
  }
  const std::lock_guard lock(mutex_);
  staged.stage = Stage::kFailed;
  staged.failure = std::current_exception();
  changed_.notify_all();
}

// The device gets some time to finish with the caller's memory.
void StagedMessages::await_last_copy(const Staged& staged) {
  for (int round = 0;; ++round) {
    {
      const std::lock_guard lock(mutex_);
      if (last_copies_until_ == Clock::time_point{}) last_copies_until_ = Clock::now() + kLastCopies;
      if (stop_ || !staged.is_on_device || staged.event->done() || Clock::now() > last_copies_until_) return;
    }
    nap(round);
  }
}

void StagedMessages::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || !outbox_.empty(); });
    if (outbox_.empty()) return;
    const Handle staged = outbox_.front();
    lock.unlock();
    hand_over(*staged);
    lock.lock();
    outbox_.pop_front();
    changed_.notify_all();
  }
}

void StagedMessages::hand_over(Staged& staged) {
  try {
    await_copy(staged);
    Work carried;
    {
      const std::lock_guard lock(carrier_mutex_);
      if (carrier_ == nullptr) throw group_gone();
      carried = carrier_->send(staged.in_host_memory());
    }
    const std::lock_guard lock(mutex_);
    staged.carried = std::move(carried);
    staged.stage = Stage::kCarried;
    changed_.notify_all();
  } catch (...) {
    fail(staged);
  }
}

void StagedMessages::await_handover() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return outbox_.empty(); });
}

void StagedMessages::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(stop_, true)) return;
    changed_.notify_all();
  }
  {
    const std::lock_guard lock(carrier_mutex_);
    carrier_ = nullptr;
  }
  if (courier_.joinable()) courier_.join();
  const auto until = Clock::now() + kLastCopies;
  const std::lock_guard lock(mutex_);
  for (auto& [ticket, staged] : pending_) {
    if (!staged->is_on_device) continue;
    bool is_copied = false;
    try {
      for (int round = 0; !(is_copied = staged->event->done()) && Clock::now() < until; ++round) nap(round);
    } catch (const std::exception&) {
    }
    if (!is_copied) leak(staged->memory);
  }
}

}  // namespace lockstep::nccl
