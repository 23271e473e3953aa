#include "src/comm/call/comm_thread.h"

#include <chrono>
#include <system_error>
#include <utility>
#include <vector>

#include "src/comm/call/group_gone.h"
#include "src/comm/flight/flight_recorder.h"
#include "src/comm/net/backoff.h"
#include "src/core/process/process_limits.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lockstep {

namespace {

void pause_cpu() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

constexpr int kPauses = 50;

// What a communication thread is to do when the operation that it executes has ended; null on other threads.
thread_local std::vector<std::function<void()>>* after_operation = nullptr;

}  // namespace

CommThread::CommThread(std::function<void(const Operation&)> execute, std::function<void()> rest)
    : execute_(std::move(execute)), rest_(std::move(rest)) {}

CommThread::~CommThread() { stop(); }

// The communication thread itself cannot wait for its own end: it goes on to it once what stops it has returned.
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

// Waits as the design measured it: a few pauses, then yields for up to a millisecond, then sleep. Code that changes a
// value which a condition reads calls wake_sleepers() afterwards; the sequentially consistent counter makes sure that
// either the sleeper sees the change or the waker sees the sleeper.
template <typename Condition>
void CommThread::await(Condition&& condition) {
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
  const std::lock_guard lock(mutex_);  // a sleeper between its check and its sleep holds the mutex: do not slip past it
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
  if (ticket > kSlots) queue.wait(ticket - kSlots);  // the slot's former operation
  queue.slots_[ticket % kSlots] = operation;
  queue.issued_.store(ticket);
  queue.wake_sleepers();
  return Work(self, ticket);
}

// What a continuation starts, while the queue stands at the continuation's own ticket.
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

// Operations that are not executed any more are dropped here as well, until the owner stops the queue: their
// continuations may hold the last references to whatever would.
void CommThread::serve() {
  std::vector<std::function<void()>> later;
  after_operation = &later;
  thread_id_.store(std::this_thread::get_id());
  std::shared_ptr<CommThread> self;  // from the first continuation on: this thread may let go of the last other one
  for (std::uint64_t ticket = 1;; ++ticket) {
    await([&] { return issued_.load() >= ticket || stop_.load(); });
    if (issued_.load() < ticket) break;
    if (!self && slots_[ticket % kSlots].chained.run) self = weak_from_this().lock();
    execute_next(ticket);
  }
  thread_id_.store({});  // a later thread may get the same
  after_operation = nullptr;
}

void CommThread::end_execution() {
  running_.store(0);
  rest_();
}

// Noting the operation as running and then reading `broken_`, against a waiter that reads them in the other order:
// either the waiter sees that its buffers are in use, or they are not touched.
void CommThread::execute_next(std::uint64_t ticket) {
  running_.store(ticket);
  Operation& operation = slots_[ticket % kSlots];
  const bool is_dropped = stop_.load() || broken_.load();
  const bool is_complete = !is_dropped && execute(operation);
  let_go(operation);
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

// What a continuation holds does not outlive it, however it ends. That may be the group itself, whose end then stops
// this queue.
void CommThread::let_go(Operation& operation) {
  operation.chained = {};
  for (std::size_t i = 0; i < after_operation->size(); ++i)
    std::exchange((*after_operation)[i], {})();  // which may add others
  after_operation->clear();
}

void CommThread::await_idle() noexcept {
  await([&] { return completed_.load() >= issued_.load() || (broken_.load() && running_.load() == 0); });
}

bool CommThread::done(std::uint64_t ticket) {
  const bool lost = is_lost(ticket);  // asked first: it may complete in between
  if (completed_.load() >= ticket) return true;
  if (lost) throw_if_broken();
  return false;
}

void CommThread::wait(std::uint64_t ticket) {
  if (completed_.load() < ticket && is_own_thread())
    throw InvalidArgument(
        "a continuation of Work::then() waits for a call that is behind it: chain what comes after that call behind "
        "it");
  await([&] { return completed_.load() >= ticket || is_lost(ticket); });
  if (completed_.load() < ticket) throw_if_broken();
}

}  // namespace lockstep
