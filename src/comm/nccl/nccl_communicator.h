// A non-blocking NCCL communicator: no call of it waits for peers without a deadline.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <future>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/operation.h"
#include "lockstep/core/device.h"
#include "lockstep/core/place.h"
#include "src/comm/nccl/nccl_api.h"

namespace lockstep::nccl {

// Is the average of this call made of a sum? Whoever queues it divides: see Queue::divide().
inline bool is_averaged_apart(const Signature& call) {
  return is_reduction(call.kind) && call.op == ReduceOp::kAvg && (call.dtype == DType::kFloat16 || call.dtype == DType::kBFloat16);
}

// enqueue() by one thread at a time; the rest from any.
class Communicator {
 public:
  // Of the thread's current device, of which `stream` is one that stays. Collective. `keep_waiting` is called while peers are awaited and
  // throws to end that; so does the deadline (TimeoutError).
  Communicator(const Api& api, const Place& place, const Stream& stream, const ncclUniqueId& id, std::chrono::milliseconds timeout,
               const std::function<void()>& keep_waiting);
  ~Communicator();  // aborts what finish() did not end
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Queues the operation on `stream`. Not for barriers and allocations, which move nothing. The first ones connect the peers, and wait for
  // them as the constructor does, for the operation's time at most.
  void enqueue(const Operation& operation, cudaStream_t stream, const std::function<void()>& keep_waiting);

  // Memory of the thread's current device that NCCL sends from and receives into in place. Throws Error when it is exhausted.
  void* allocate(std::size_t bytes);
  void free(void* memory) noexcept;  // also after abort()

  // Throws what went wrong in an operation that was queued before.
  void check();
  // Ends kernels that wait for peers. Nothing can be queued afterwards. NCCL waits for the graphs that hold its calls to go; this does not.
  void abort() noexcept;
  // Ends the communicator once all that was queued is done, here: what peers have yet to take still gets to them, within `at_most`.
  void finish(std::chrono::milliseconds at_most) noexcept;

 private:
  class Reduction;
  class Group;
  void plain(const Operation& operation, ncclRedOp_t reduction, cudaStream_t stream);
  void grouped(const Operation& operation, cudaStream_t stream);
  void coalesced(const Operation& operation, ncclRedOp_t reduction, cudaStream_t stream);
  void exchange(const std::byte* send, const std::vector<std::size_t>& send_counts, std::byte* receive,
                const std::vector<std::size_t>& receive_counts, DType dtype, cudaStream_t stream);
  void must(ncclResult_t result, const char* call);
  bool is_ready(const char* call);
  void throw_if_over() const;
  void await_abort(std::chrono::milliseconds at_most) const noexcept;
  void await_ready(const char* call, std::chrono::milliseconds timeout, const std::function<void()>& keep_waiting);
  std::size_t ranks() const { return static_cast<std::size_t>(place_.world_size); }

  const Api& api_;
  Place place_;
  const Stream& stream_;
  mutable std::mutex mutex_;  // abort() against the rest
  ncclComm_t communicator_ = nullptr;
  bool over_ = false;                                   // aborted, or finished
  std::shared_future<void> aborting_;                   // once it is aborted: ready when NCCL has let go of everything
  std::vector<std::pair<void*, void*>> registrations_;  // memory, and NCCL's handle of it
};

}  // namespace lockstep::nccl
