#include "src/comm/nccl/nccl_queue.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "src/comm/call/continuation.h"
#include "src/comm/call/group_gone.h"
#include "src/comm/flight/flight_recorder.h"
#include "src/comm/nccl/graph_calls.h"
#include "src/comm/nccl/nap.h"
#include "src/comm/nccl/nccl_rendezvous.h"

namespace lockstep::nccl {

namespace {

using Clock = std::chrono::steady_clock;

// How long a rank that leaves waits for its peers to receive the remaining data.
constexpr auto kLeaveTime = std::chrono::seconds(2);
// How long NCCL's report of a lost peer waits for the failure detector's.
constexpr auto kDetectorTime = std::chrono::seconds(1);
// How long kernels may take to end after an abort.
constexpr auto kLastKernels = std::chrono::seconds(1);

std::string name_of_call(const Operation& operation) { return describe(operation.signature, operation.purpose); }

// NCCL uses the thread's current device, which the thread sets by requesting a stream of it.
cudaStream_t native(const Stream& stream) { return static_cast<cudaStream_t>(stream.native()); }

ncclUniqueId id_for(const BackendContext& context, const Api& api, const Stream& stream) {
  native(stream);
  return agree_on_id(context, api);
}

// When a peer ends, NCCL's connections break, and NCCL may report that, without a rank, before the failure detector has
// found the rank.
template <typename Step, typename Doing, typename IsOver>
auto or_as(Backend& watch, const Doing& doing, const IsOver& is_over, Step&& step) {
  try {
    return step();
  } catch (const NcclError& error) {
    const auto until = Clock::now() + kDetectorTime;
    for (int round = 0; error.may_be_a_peers_end() && Clock::now() < until && !is_over(); ++round) {
      watch.throw_if_over(doing);
      nap(round);
    }
    throw;
  }
}

Communicator communicator_for(const BackendContext& context, const Api& api, const Stream& stream,
                              const ncclUniqueId& id, Backend& watch) {
  const auto doing = [] { return std::string("making NCCL's communicator"); };
  const auto look = [&] { watch.throw_if_over(doing); };
  const bool blocks = env::integer(env::kNcclBlocking, 0, 1) == 1;
  return or_as(
      watch, doing, [] { return false; },
      [&] { return Communicator(api, context.place, stream, id, context.store_timeout, look, blocks); });
}

}  // namespace

Queue::Queue(const BackendContext& context, std::unique_ptr<Backend> watch, const Api& api)
    : place_(context.place),
      timeout_(context.timeout),
      device_(*context.device),
      watch_(std::move(watch)),
      stream_(device_.new_priority_stream()),
      before_(device_.new_event()),
      communicator_(communicator_for(context, api, device_.default_stream(), id_for(context, api, *stream_), *watch_)) {
  for (Slot& slot : slots_) slot.event = device_.new_event();
  thread_ = std::thread([this] { serve(); });
}

Queue::~Queue() { stop(); }

Work Queue::start(const std::shared_ptr<Queue>& self, const Operation& operation) {
  const OperationKind kind = operation.signature.kind;
  const Way way = kind == OperationKind::kBarrier || kind == OperationKind::kAllocate ? Way::kNothing : Way::kData;
  if (!self->captured_) return Work(self, self->issue(operation, way));
  if (way == Way::kNothing || (kind == OperationKind::kAllToAll && operation.send == operation.receive))
    throw InvalidArgument("{}: {}cannot be part of a graph", name_of_call(operation),
                          way == Way::kNothing ? "" : "in place, it ");
  Event& event = self->captured_->add(operation);
  self->or_fail([&] {
    self->enqueue(operation);
    event.record(*self->stream_);
  });
  return Work(self->captured_, self->captured_->calls());
}

Work Queue::start_chained(const std::shared_ptr<Queue>& self, const Operation& operation) {
  Work made;
  self->or_fail([&] { self->order_behind_default_stream(), made = run_chained(operation, *self->stream_); });
  if (operation.chained.makes_call) return made;
  if (!self->captured_)
    return Work(self, self->issue({.signature = operation.signature, .timeout = operation.timeout}, Way::kComputed));
  self->or_fail([&] { self->captured_->add_mark().record(*self->stream_); });
  return Work(self->captured_, self->captured_->calls());
}

Work Queue::start_replay(const std::shared_ptr<Queue>& self, const Operation& replay) {
  return Work(self, self->issue(replay, Way::kReplay));
}

void Queue::begin_capture() {
  LOCKSTEP_CHECK(!captured_, "nccl: a graph is being recorded already");
  wait(announced_);  // the other thread queries events, which CUDA does not allow during capture
  captured_ = std::make_shared<GraphCalls>(device_);
}

std::uint64_t Queue::end_capture() {
  LOCKSTEP_CHECK(captured_, "nccl: no graph is being recorded");
  return std::exchange(captured_, nullptr)->hash();
}

// The call is announced before it is queued: NCCL may wait for the peers in the first calls, and the comparison finds a
// peer that never arrives, or arrives with another call.
std::uint64_t Queue::issue(const Operation& operation, Way way) {
  watch_->throw_if_over([&] { return name_of_call(operation); });
  std::unique_lock lock(mutex_);
  const std::uint64_t ticket = announced_ + 1;
  changed_.wait(lock, [&] { return failure_ || ticket - completed_ <= kSlots; });
  if (failure_) rethrow(lock);
  Slot& slot = slots_[ticket % kSlots];
  slot.operation = operation;
  slot.way = way;
  announced_ = ticket;
  changed_.notify_all();
  lock.unlock();
  or_fail([&] { queue(slot); });
  lock.lock();
  issued_ = ticket;
  changed_.notify_all();
  return ticket;
}

void Queue::queue(Slot& slot) {
  if (slot.way == Way::kReplay) slot.event->record(device_.default_stream());
  if (slot.way == Way::kComputed) slot.event->record(*stream_);
  if (slot.way != Way::kData) return;
  Operation operation = slot.operation;  // a copy: the other thread reads the slot's
  if (operation.signature.kind == OperationKind::kAllToAll && operation.send == operation.receive)
    operation.send = copy_of(slot);
  enqueue(operation);
  slot.event->record(*stream_);
}

void Queue::order_behind_default_stream() {
  before_->record(device_.default_stream());
  before_->stream_wait(*stream_);
}

void Queue::enqueue(const Operation& operation) {
  order_behind_default_stream();
  or_as_the_detector_says(operation, [&] {
    communicator_.enqueue(operation, native(*stream_),
                          [&] { watch_->throw_if_over([&] { return name_of_call(operation); }); });
  });
  if (is_averaged_apart(operation.signature)) divide(operation);
}

// In float32, rounded once: 1 / n in 16 bits is itself up to 0.2 % off.
void Queue::divide(const Operation& sum) {
  const Signature& call = sum.signature;
  const auto divide_each = [&](void* data, std::size_t count) {
    if (count == 0) return;
    const OutputView values(data, call.dtype, {static_cast<std::int64_t>(count)});
    device_.kernels().scale(values, 1 / static_cast<float>(place_.world_size), values, *stream_);
  };
  if (sum.layout && !sum.layout->regions.empty())
    for (const Region& region : sum.layout->regions) divide_each(region.data, region.count);
  else if (call.kind != OperationKind::kReduce || call.root == place_.rank)
    divide_each(sum.receive, call.count);
}

template <typename Step> void Queue::or_as_the_detector_says(const Operation& operation, Step&& step) {
  or_as(
      *watch_, [&] { return name_of_call(operation); }, [this] { return is_stopping(); }, step);
}

// A failure here ends the group with the first reason.
template <typename Step> void Queue::or_fail(Step&& step) {
  try {
    step();
  } catch (...) {
    fail(std::current_exception());
    std::unique_lock lock(mutex_);
    rethrow(lock);
  }
}

// NCCL's sends and receives must not overlap.
const void* Queue::copy_of(Slot& slot) {
  const std::size_t bytes = slot.operation.bytes() * static_cast<std::size_t>(place_.world_size);
  slot.copy = device_.allocate(bytes);
  device_.copy(slot.copy.data(), slot.operation.send, bytes, device_.default_stream());
  return slot.copy.data();
}

bool Queue::done(std::uint64_t ticket) {
  std::unique_lock lock(mutex_);
  if (completed_ >= ticket) return true;
  if (has_failed_) rethrow(lock);
  return false;
}

void Queue::wait(std::uint64_t ticket) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return completed_ >= ticket || has_failed_; });
  if (completed_ < ticket) rethrow(lock);
}

void Queue::stream_wait(std::uint64_t ticket, Stream& stream) {
  {
    std::unique_lock lock(mutex_);
    if (completed_ >= ticket) return;
    if (failure_) rethrow(lock);
    const Slot& slot = slots_[ticket % kSlots];
    if (slot.way != Way::kNothing) return slot.event->stream_wait(stream);
  }
  wait(ticket);  // the device does not take part in a barrier
}

Buffer Queue::allocate(const std::shared_ptr<Queue>& self, std::size_t bytes) {
  Operation operation;
  operation.signature.kind = OperationKind::kAllocate;
  operation.signature.sequence = ++self->allocations_;
  operation.signature.count = bytes;
  operation.signature.dtype = DType::kUInt8;
  operation.timeout = self->timeout_;
  self->wait(self->issue(operation, Way::kNothing));
  native(*self->stream_);
  self->device_.empty_cache();  // NCCL requests memory from the driver, where what we keep freed is missing
  const std::size_t floats = bytes / sizeof(float) + 1;
  auto* const memory = static_cast<std::byte*>(self->communicator_.allocate(floats * sizeof(float)));
  Device& device = self->device_;
  Buffer buffer(memory, bytes, &device, [self, memory] { self->release(memory); });
  device.kernels().fill({reinterpret_cast<float*>(memory), {static_cast<std::int64_t>(floats)}}, 0,
                        device.default_stream());
  return buffer;
}

// NCCL unmaps it at once, while queued operations may still use it.
void Queue::release(void* memory) noexcept {
  await_idle();
  communicator_.free(memory);
}

void Queue::await_idle() noexcept {
  try {
    native(*stream_);
    if (!device_.default_stream().is_capturing()) device_.default_stream().synchronize();
    stream_->synchronize();
  } catch (const Error&) {  // the device has failed: NCCL will report it
  }
}

// The first failure is kept. Waiting threads are released when the device has released the buffers.
void Queue::fail(std::exception_ptr failure) {
  std::uint64_t first = 0, last = 0;
  bool is_leaving = false;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_ = failure;
    first = completed_ + 1;
    last = issued_;
    is_leaving = stop_;
    changed_.notify_all();
  }
  // Tells the other ranks the reason; it has no effect if they already know.
  if (!is_leaving) watch_->abort(flight::what_is_handled());
  communicator_.abort();
  await_what_was_queued(first, last);
  const std::lock_guard lock(mutex_);
  has_failed_ = true;
  changed_.notify_all();
}

void Queue::await_what_was_queued(std::uint64_t first, std::uint64_t last) noexcept {
  const auto until = Clock::now() + kLastKernels;
  try {
    for (std::uint64_t ticket = first; ticket <= last; ++ticket) {
      const Slot& slot = slots_[ticket % kSlots];
      if (slot.way == Way::kNothing) continue;
      for (int round = 0; !slot.event->done() && Clock::now() < until; ++round) nap(round);
    }
  } catch (const std::exception&) {  // the device itself has failed
  }
}

void Queue::rethrow(std::unique_lock<std::mutex>& lock) {
  changed_.wait(lock, [&] { return has_failed_; });
  std::rethrow_exception(failure_);
}

void Queue::stop() {
  bool is_clean = false;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(stop_, true)) return;
    is_clean = !failure_ && completed_ == announced_;
    changed_.notify_all();
  }
  watch_->leave();
  thread_.join();
  if (is_clean) communicator_.finish(kLeaveTime);
  communicator_.abort();
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = std::make_exception_ptr(group_gone());
  has_failed_ = true;
  changed_.notify_all();
}

void Queue::serve() {
  native(*stream_);  // makes its device, not the first one, this thread's current device
  for (std::uint64_t ticket = 1; execute(ticket); ++ticket) {
    slots_[ticket % kSlots].copy = {};
    const std::lock_guard lock(mutex_);
    completed_ = ticket;
    changed_.notify_all();
  }
}

// Returns false if there is nothing more to do.
bool Queue::execute(std::uint64_t ticket) {
  const auto await = [&](const std::uint64_t& reached) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return reached >= ticket || stop_ || failure_; });
    return reached >= ticket && !stop_ && !failure_;
  };
  if (!await(announced_)) return false;
  const Slot& slot = slots_[ticket % kSlots];  // not reused before it has completed
  const FlightNote& note = slot.operation.flight;
  try {
    flight::note_started(note);
    if (slot.way != Way::kComputed) watch_->compare(slot.operation);
    if (!await(issued_)) return false;
    if (slot.way != Way::kNothing && !await_end(slot)) return false;
    flight::note_finished(note);
    return true;
  } catch (...) {
    flight::note_failed(note);
    fail(std::current_exception());
    return false;
  }
}

// Returns false if it was stopped before.
bool Queue::await_end(const Slot& slot) {
  const Operation& operation = slot.operation;
  const auto deadline = Clock::now() + operation.timeout;
  for (int round = 0; !slot.event->done(); ++round) {
    or_as_the_detector_says(operation, [this] { communicator_.check(); });
    watch_->throw_if_over([&] { return name_of_call(operation); });
    if (Clock::now() > deadline)
      throw TimeoutError(
          "{}: all ranks have arrived, but the GPU of rank {} has not finished it in {:.1f} s: is it, or a peer's, "
          "busy with other work?",
          name_of_call(operation), place_.rank, std::chrono::duration<double>(operation.timeout).count());
    if (is_stopping()) return false;
    nap(round);
  }
  return true;
}

bool Queue::is_stopping() {
  const std::lock_guard lock(mutex_);
  return stop_ || failure_;
}

}  // namespace lockstep::nccl
