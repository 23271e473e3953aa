#include "src/comm/call/comm_thread.h"

#include <chrono>
#include <system_error>
#include <utility>
#include <vector>

#include "src/comm/call/group_gone.h"
#include "src/comm/flight/flight_recorder.h"
#include "src/comm/net/backoff.h"
#include "src/core/base/processor.h"
#include "src/core/process/process_limits.h"

namespace lockstep {

namespace {

constexpr int kPauses = 50;

// Calls that the communication thread makes when the operation that it executes has ended; null on other threads.
thread_local std::vector<std::function<void()>>* after_operation = nullptr;

}  // namespace

CommThread::CommThread(std::function<void(const Operation&)> execute, std::function<void()> rest)
    : execute_(std::move(execute)), rest_(std::move(rest)) {}

CommThread::~CommThread() { stop(); }

// The communication thread cannot wait for its own end. It exits after the call that stops it has returned.
void CommThread::stop() {
  stop_.store(true);
  fail(std::make_exception_ptr(group_gone()));
  if (!thread_.joinable()) return;
  if (!is_own_thread()) return thread_.join();
  rest_ = [] {};
  thread_.detach();
}

bool CommThread::run_after_operation(std::function<void()> call) {
  if (after_operation == nullptr) return false;
  after_operation->push_back(std::move(call));
  return true;
}

// All atomics of this class are sequentially consistent. `issued_` publishes the slot and, for the operation's input,
// all that the caller has stored before; `completed_` publishes the result, and gives the slot back.
//
// Waits in three steps, chosen by measurement: a few pauses, then yields for up to a millisecond, then sleep. Code that
// changes a value in a condition calls wake_sleepers() afterwards. The sequentially consistent counter guarantees that
// either the sleeper sees the change or the waker sees the sleeper.
template <typename Condition> void CommThread::await(Condition&& condition) {
  for (int i = 0; i < kPauses; ++i) {
    if (condition()) return;
    pause_cpu();
  }
  thread_local YieldingWait yields;
  if (yields.until(condition)) return;
  std::unique_lock lock(mutex_);
  sleepers_.fetch_add(1);
  changed_.wait(lock, condition);
  sleepers_.fetch_sub(1);
}

void CommThread::wake_sleepers() {
  if (sleepers_.load() == 0) return;
  // A sleeper holds the mutex between its check and its sleep, so this cannot fall between them.
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

void CommThread::throw_if_broken() {
  if (!broken_.load()) return;
  const std::lock_guard lock(mutex_);
  std::rethrow_exception(failure_);
}

void CommThread::fail(std::exception_ptr failure) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::move(failure);
    broken_.store(true);
  }
  wake_sleepers();
}

void CommThread::run(const Operation& operation) {
  if (const std::uint64_t before = issued_.load(); completed_.load() < before) {
    wait(before);
    flight::note_started(operation.flight);
  }
  throw_if_broken();
  try {
    execute_(operation);
  } catch (...) {
    fail(std::current_exception());
    throw;
  }
}

Work CommThread::start(const std::shared_ptr<CommThread>& self, const Operation& operation) {
  CommThread& queue = *self;
  if (queue.is_own_thread()) return queue.execute_inside(operation);
  queue.throw_if_broken();
  if (!queue.thread_.joinable()) queue.start_thread();  // first: an operation that counts as issued must be executed
  const std::uint64_t ticket = queue.issued_.load() + 1;
  if (ticket > kSlots) queue.wait(ticket - kSlots);  // the operation that used this slot before
  queue.slots_[ticket % kSlots] = operation;
  queue.issued_.store(ticket);
  queue.wake_sleepers();
  return Work(self, ticket);
}

// Executes a call that a continuation makes, while the queue is at the continuation's own ticket.
Work CommThread::execute_inside(const Operation& operation) {
  flight::note_started(operation.flight);
  execute_(operation);
  return {};
}

void CommThread::start_thread() {
  try {
    thread_ = std::thread([this] { serve(); });
  } catch (const std::system_error& refusal) {
    fail(std::make_exception_ptr(
        NoThread("the communication thread cannot be started: {}", why_not_started(refusal.code().value()))));
    throw_if_broken();
  }
}

// Operations that will not be executed are also dropped here until the owner stops the queue: their continuations may
// hold the last references to the owner.
void CommThread::serve() {
  std::vector<std::function<void()>> later;
  after_operation = &later;
  thread_id_.store(std::this_thread::get_id());
  std::shared_ptr<CommThread>
      self;  // set from the first continuation on, since a continuation may drop the last other reference
  for (std::uint64_t ticket = 1;; ++ticket) {
    await([&] { return issued_.load() >= ticket || stop_.load(); });
    if (issued_.load() < ticket) break;
    if (!self && slots_[ticket % kSlots].chained.run) self = weak_from_this().lock();
    execute_next(ticket);
  }
  thread_id_.store({});  // the system may reuse the id for a later thread
  after_operation = nullptr;
}

void CommThread::end_execution() {
  running_.store(0);
  rest_();
}

// Marks the operation as running and then reads `broken_`; a waiter does so in the opposite order. So either the waiter
// sees that its buffers are in use, or they are not touched.
void CommThread::execute_next(std::uint64_t ticket) {
  running_.store(ticket);
  Operation& operation = slots_[ticket % kSlots];
  const bool is_dropped = stop_.load() || broken_.load();
  const bool is_complete = !is_dropped && execute(operation);
  release_captures(operation);
  if (is_complete) completed_.store(ticket);
  end_execution();
  wake_sleepers();
}

bool CommThread::execute(const Operation& operation) {
  try {
    if (!operation.chained.run) flight::note_started(operation.flight);
    execute_(operation);
    flight::note_finished(operation.flight);
    return true;
  } catch (...) {
    flight::note_failed(operation.flight);
    fail(std::current_exception());
    return false;
  }
}

// The captures of a continuation are destroyed when it ends, also on failure. They may include the group itself, whose
// destruction stops this queue.
void CommThread::release_captures(Operation& operation) {
  operation.chained = {};
  for (std::size_t i = 0; i < after_operation->size(); ++i)
    std::exchange((*after_operation)[i], {})();  // may add others
  after_operation->clear();
}

void CommThread::await_idle() noexcept {
  await([&] { return completed_.load() >= issued_.load() || (broken_.load() && running_.load() == 0); });
}

bool CommThread::done(std::uint64_t ticket) {
  const bool lost = is_lost(ticket);  // read first: the operation may complete in between
  if (completed_.load() >= ticket) return true;
  if (lost) throw_if_broken();
  return false;
}

void CommThread::wait(std::uint64_t ticket) {
  if (completed_.load() < ticket && is_own_thread())
    throw InvalidArgument(
        "a continuation of Work::then() waits for a call that comes after it: chain the work that needs that call "
        "after it");
  await([&] { return completed_.load() >= ticket || is_lost(ticket); });
  if (completed_.load() < ticket) throw_if_broken();
}

}  // namespace lockstep
