// A rank's operations in the order of issue: each is queued on the device at once, compared with the other ranks'
// concurrently, and waited for.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "lockstep/comm/backend.h"
#include "lockstep/comm/backend_context.h"
#include "lockstep/core/device.h"
#include "src/comm/nccl/nccl_communicator.h"

namespace lockstep::nccl {

class GraphCalls;  // graph_calls.h

class Queue : public CompletionQueue {
 public:
  // Collective: makes the communicator.
  Queue(const BackendContext& context, std::unique_ptr<Backend> watch, const Api& api);
  ~Queue() override;

  // For one thread at a time.
  static Work start(const std::shared_ptr<Queue>& self, const Operation& operation);
  // Runs the continuation at once: the kernels that it queues on the operations' stream run after them.
  static Work start_chained(const std::shared_ptr<Queue>& self, const Operation& operation);
  static Buffer allocate(const std::shared_ptr<Queue>& self, std::size_t bytes);
  void begin_capture();
  std::uint64_t end_capture();
  static Work start_replay(const std::shared_ptr<Queue>& self, const Operation& replay);

  bool done(std::uint64_t ticket) override;
  void wait(std::uint64_t ticket) override;
  void stream_wait(std::uint64_t ticket, Stream& stream) override;
  void await_idle() noexcept;  // see Backend

  Backend& watch() { return *watch_; }
  // Afterwards nothing is used except the allocated memory; incomplete operations throw PeerLost.
  void stop();

 private:
  static constexpr std::uint64_t kSlots = 256;
  enum class Way {
    kNothing,
    kData,
    kReplay,
    kComputed
  };  // what the device does for it; the last is not compared with other ranks
  struct Slot {
    Operation operation;
    Way way = Way::kNothing;
    std::unique_ptr<Event> event;  // on the device; not for kNothing
    Buffer copy;                   // of the data to send, if it must not overlap the data to receive
  };

  std::uint64_t issue(const Operation& operation, Way way);
  void queue(Slot& slot);
  const void* copy_of(Slot& slot);
  void enqueue(const Operation& operation);
  void order_behind_default_stream();
  void divide(const Operation& sum);
  template <typename Step> void or_as_the_detector_says(const Operation& operation, Step&& step);
  template <typename Step> void or_fail(Step&& step);
  void serve();
  bool execute(std::uint64_t ticket);
  bool await_end(const Slot& slot);
  void fail(std::exception_ptr failure);
  void release(void* memory) noexcept;
  void await_what_was_queued(std::uint64_t first, std::uint64_t last) noexcept;
  [[noreturn]] void rethrow(std::unique_lock<std::mutex>& lock);
  bool is_stopping();

  const Place place_;
  const std::chrono::milliseconds timeout_;
  Device& device_;
  const std::unique_ptr<Backend> watch_;
  const std::unique_ptr<Stream> stream_;
  const std::unique_ptr<Event> before_;
  Communicator communicator_;
  std::array<Slot, kSlots> slots_;  // operation t is in slot t % kSlots; tickets count from 1
  std::uint64_t allocations_ = 0;
  std::shared_ptr<GraphCalls> captured_;  // while a graph is recorded

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::uint64_t announced_ = 0;  // to be compared
  std::uint64_t issued_ = 0;     // also queued on the device
  std::uint64_t completed_ = 0;
  std::exception_ptr failure_;
  bool has_failed_ = false;  // and all queued work has ended: buffers may be freed
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace lockstep::nccl
