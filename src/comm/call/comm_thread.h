// The communication thread of a rank: executes operations in the order of their issue, beside the caller's work.
//
// Shared by the backends that compute on the CPU. Issuing allocates nothing: operations lie in a fixed ring of slots
// and complete in order, so that "operation t is done" is "completed >= t". A synchronous call runs in the calling
// thread when nothing is under way, since a hand-over costs 3-4 us.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "lockstep/comm/operation.h"
#include "lockstep/comm/work.h"
#include "lockstep/core/error.h"

namespace lockstep {

// The system has refused a rank its communication thread: what was to be executed is not.
class NoThread : public Error {
 public:
  using Error::Error;
};

// Threads: one thread at a time may call run() and start(); Work and fail() may be used from any.
class CommThread : public CompletionQueue, public std::enable_shared_from_this<CommThread> {
 public:
  // `execute` runs one operation to its end within the operation's deadline, or throws. It is never called twice at
  // once. `rest` is called on the communication thread whenever is_executing() has become false.
  explicit CommThread(
      std::function<void(const Operation&)> execute, std::function<void()> rest = [] {});
  ~CommThread() override;
  // Drops what has not begun, waits for the operation that is being executed: afterwards `execute` is not called again,
  // and what is not complete throws group_gone() (or what fail() said before). A Work may outlive the backend that
  // executes. The owner of a queue of continuations calls it; on the communication thread only within
  // run_after_operation(), where nothing is being executed.
  void stop();
  CommThread(const CommThread&) = delete;
  CommThread& operator=(const CommThread&) = delete;

  // Is this the communication thread? What a continuation (Operation::chained, which `execute` runs) starts there is
  // executed at once.
  bool is_own_thread() const { return std::this_thread::get_id() == thread_id_.load(); }
  // On the communication thread of any queue: `call` runs there once what it executes has ended, before that counts as
  // complete. On other threads: false, and nothing else. For what a continuation lets go and cannot end within it: the
  // group by which it runs.
  static bool run_after_operation(std::function<void()> call);

  // On the communication thread. An operation that it begins later sees all that the asking thread stored before.
  bool is_executing() const { return running_.load() != 0; }

  void run(const Operation& operation);
  // Blocks only when kSlots operations are under way. The thread starts with the first call; where the system refuses
  // it, this and all later operations throw NoThread.
  static Work start(const std::shared_ptr<CommThread>& self, const Operation& operation);

  // From now on every operation that is not complete, and every later one, throws `failure`. The first failure stays.
  // The operation that is being executed throws when its execution has ended: until then it uses its buffers.
  void fail(std::exception_ptr failure);

  void await_idle() noexcept;  // see Backend
  bool done(std::uint64_t ticket) override;
  void wait(std::uint64_t ticket) override;
  void stream_wait(std::uint64_t ticket, Stream&) override { wait(ticket); }

 private:
  static constexpr std::uint64_t kSlots = 256;

  void start_thread();
  void serve();
  Work execute_inside(const Operation& operation);
  void execute_next(std::uint64_t ticket);
  bool execute(const Operation& operation);
  void let_go(Operation& operation);
  void end_execution();
  bool is_lost(std::uint64_t ticket) const { return broken_.load() && running_.load() != ticket; }
  void throw_if_broken();
  template <typename Condition>
  void await(Condition&& condition);
  void wake_sleepers();

  std::function<void(const Operation&)> execute_;
  std::function<void()> rest_;
  std::array<Operation, kSlots> slots_;       // operation t lies in slot t % kSlots, tickets count from 1
  std::atomic<std::uint64_t> issued_{0};      // written by the caller
  std::atomic<std::uint64_t> completed_{0};   // written by the communication thread, as the next
  std::atomic<std::uint64_t> running_{0};     // the operation that is being executed; 0: none
  std::atomic<std::thread::id> thread_id_{};  // of `thread_`, once it serves
  std::atomic<bool> broken_{false};
  std::atomic<bool> stop_{false};
  std::atomic<int> sleepers_{0};  // threads in the slow path of await()
  std::exception_ptr failure_;    // guarded by mutex_
  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread thread_;
};

}  // namespace lockstep
