// An NCCL communicator: no call of it waits for peers without a deadline. Calls of one that does not block return at
// once, and NCCL is asked until it has queued them; calls of one that blocks are watched over by another thread, which
// ends them by aborting the communicator.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/operation.h"
#include "lockstep/core/device.h"
#include "lockstep/core/place.h"
#include "src/comm/nccl/call_watch.h"
#include "src/comm/nccl/nccl_api.h"

namespace lockstep::nccl {

// Is the average of this call made of a sum? Whoever queues it divides: see Queue::divide().
inline bool is_averaged_apart(const Signature& call) {
  return is_reduction(call.kind) && call.op == ReduceOp::kAvg &&
         (call.dtype == DType::kFloat16 || call.dtype == DType::kBFloat16);
}

// enqueue() by one thread at a time; the rest from any, but allocate() and free() of one that blocks wait for the call
// under way.
class Communicator {
 public:
  // Of the thread's current device, of which `stream` is one that stays. Collective. `keep_waiting` is called while
  // peers are awaited and throws to end that; so does the deadline (TimeoutError). Of one that `blocks` by a thread of
  // its own.
  Communicator(const Api& api, const Place& place, const Stream& stream, const ncclUniqueId& id,
               std::chrono::milliseconds timeout, const std::function<void()>& keep_waiting, bool blocks = false);
  ~Communicator();  // aborts what finish() did not end
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Queues the operation on `stream`. Not for barriers and allocations, which move nothing. The first ones connect the
  // peers, and wait for them as the constructor does, for the operation's time at most.
  void enqueue(const Operation& operation, cudaStream_t stream, const std::function<void()>& keep_waiting);

  // Memory of the thread's current device that NCCL sends from and receives into in place. Throws Error when it is
  // exhausted.
  void* allocate(std::size_t bytes);
  void free(void* memory) noexcept;  // also after abort()

  // Throws what went wrong in an operation that was queued before; nothing while another call blocks.
  void check();
  // Ends kernels that wait for peers. Nothing can be queued afterwards. NCCL waits for the graphs that hold its calls
  // to go; this does not.
  void abort() noexcept;
  // Ends the communicator once all that was queued is done, here: what peers have yet to take still gets to them,
  // within `at_most`.
  void finish(std::chrono::milliseconds at_most) noexcept;

 private:
  class Reduction;
  class Group;
  void plain(const Operation& operation, ncclRedOp_t reduction, cudaStream_t stream);
  void grouped(const Operation& operation, cudaStream_t stream);
  void coalesced(const Operation& operation, ncclRedOp_t reduction, cudaStream_t stream);
  void exchange(const std::byte* send, const std::vector<std::size_t>& send_counts, std::byte* receive,
                const std::vector<std::size_t>& receive_counts, DType dtype, cudaStream_t stream);
  void call(const char* name, std::chrono::milliseconds timeout, const std::function<void()>& keep_waiting,
            const std::function<void()>& make);
  template <typename Call>
  void run(const Call& call, const char* name);
  void must(ncclResult_t result, const char* call);
  bool is_ready(const char* call);
  void throw_if_over() const;
  void await_abort(std::chrono::milliseconds at_most) const noexcept;
  void await_ready(const char* call, std::chrono::milliseconds timeout, const std::function<void()>& keep_waiting);
  std::size_t ranks() const { return static_cast<std::size_t>(place_.world_size); }

  const Api& api_;
  Place place_;
  const Stream& stream_;
  std::mutex mutex_;  // of NCCL's calls; abort() does without while a call blocks
  ncclComm_t communicator_ = nullptr;
  std::atomic<bool> over_{false};  // aborted, or finished
  mutable std::mutex abort_mutex_;
  std::shared_future<void> aborting_;                   // once it is aborted: ready when NCCL has let go of everything
  std::vector<std::pair<void*, void*>> registrations_;  // memory, and NCCL's handle of it
  const std::function<void()>* look_ = nullptr;         // of the operation under way
  bool is_in_group_ = false;                            // then calls do not block
  std::unique_ptr<CallWatch> watch_;                    // of one that blocks
};

}  // namespace lockstep::nccl
