// The communication thread of a rank. It executes operations in the order of issue, concurrently with the caller.
//
// The backends that compute on the CPU share this class. Issuing allocates nothing: operations are stored in a fixed
// ring of slots and complete in order, so "operation t is done" is "completed >= t". A synchronous call runs in the
// calling thread if no operation is under way, since a hand-over costs 3-4 us.
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

// The system refused to start the communication thread, so the operation is not executed.
class NoThread : public Error {
 public:
  using Error::Error;
};

// One thread at a time may call run() and start(); any thread may use Work and fail().
class CommThread : public CompletionQueue, public std::enable_shared_from_this<CommThread> {
 public:
  // `execute` runs one operation to its end within the operation's deadline, or throws. At most one call of it runs at
  // a time. `rest` is called on the communication thread whenever is_executing() has become false.
  explicit CommThread(
      std::function<void(const Operation&)> execute, std::function<void()> rest = [] {});
  ~CommThread() override;
  // Drops operations that have not begun and waits for the running one. Afterwards `execute` is not called again, and
  // incomplete operations throw group_gone() (or the error passed to fail()). A Work may outlive the backend that
  // executes it. The owner of a queue with continuations must call stop(); on the communication thread it may do so
  // only within run_after_operation(), when nothing is being executed.
  void stop();
  CommThread(const CommThread&) = delete;
  CommThread& operator=(const CommThread&) = delete;

  // Whether the caller runs on the communication thread. A call that a continuation makes there (Operation::chained,
  // which `execute` runs) is executed at once.
  bool is_own_thread() const { return std::this_thread::get_id() == thread_id_.load(); }
  // On the communication thread of any queue: queues `call` to run when the current operation has ended, before it
  // counts as complete, and returns true. On other threads: returns false. A continuation uses it to destroy an object
  // that cannot end within it, such as the group that runs it.
  static bool run_after_operation(std::function<void()> call);

  // For the communication thread. An operation that begins later sees all that the calling thread stored before.
  bool is_executing() const { return running_.load() != 0; }

  void run(const Operation& operation);
  // Blocks only if kSlots operations are under way. The first call starts the thread; if the system refuses it, this
  // and all later operations throw NoThread.
  static Work start(const std::shared_ptr<CommThread>& self, const Operation& operation);

  // From now on every incomplete operation and every later one throws `failure`. The first failure is kept. The running
  // operation throws when its execution has ended, since it uses its buffers until then.
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
  void release_captures(Operation& operation);
  void end_execution();
  bool is_lost(std::uint64_t ticket) const { return broken_.load() && running_.load() != ticket; }
  void throw_if_broken();
  template <typename Condition> void await(Condition&& condition);
  void wake_sleepers();

  std::function<void(const Operation&)> execute_;
  std::function<void()> rest_;
  std::array<Operation, kSlots> slots_;       // operation t is in slot t % kSlots; tickets count from 1
  std::atomic<std::uint64_t> issued_{0};      // written by the caller
  std::atomic<std::uint64_t> completed_{0};   // written by the communication thread
  std::atomic<std::uint64_t> running_{0};     // the operation that is being executed; 0: none
  std::atomic<std::thread::id> thread_id_{};  // id of `thread_` while it serves
  std::atomic<bool> broken_{false};
  std::atomic<bool> stop_{false};
  std::atomic<int> sleepers_{0};  // threads in the slow path of await()
  std::exception_ptr failure_;    // guarded by mutex_
  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread thread_;
};

}  // namespace lockstep
