// An NCCL communicator in which no call waits for peers without a deadline. Calls of a non-blocking communicator return
// at once, and NCCL is polled until it has queued them; another thread watches the calls of a blocking one, and ends
// them by aborting the communicator.
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

// Whether this call's average is computed from a sum. Then the code that queues it divides: see Queue::divide().
inline bool is_averaged_apart(const Signature& call) {
  return is_reduction(call.kind) && call.op == ReduceOp::kAvg &&
         (call.dtype == DType::kFloat16 || call.dtype == DType::kBFloat16);
}

// One thread at a time may call enqueue(); any thread may call the rest, but allocate() and free() of a blocking
// communicator wait for the running call.
class Communicator {
 public:
  // For the thread's current device, to which `stream`, which outlives this, belongs. Collective. `keep_waiting` is
  // called while waiting for peers, and throws to stop; so does the deadline (TimeoutError). If the communicator
  // `blocks`, a separate thread does this.
  Communicator(const Api& api, const Place& place, const Stream& stream, const ncclUniqueId& id,
               std::chrono::milliseconds timeout, const std::function<void()>& keep_waiting, bool blocks = false);
  ~Communicator();  // aborts what finish() did not end
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Queues the operation on `stream`. Not for barriers and allocations, which move nothing. The first operations
  // connect the peers, and wait for them as the constructor does, for at most the operation's timeout.
  void enqueue(const Operation& operation, cudaStream_t stream, const std::function<void()>& keep_waiting);

  // Memory on the thread's current device that NCCL sends from and receives into directly. Throws Error if there is not
  // enough.
  void* allocate(std::size_t bytes);
  void free(void* memory) noexcept;  // may be called after abort()

  // Throws the error of an operation that was queued before; does nothing while another call blocks.
  void check();
  // Ends kernels that wait for peers. Nothing can be queued afterwards. NCCL waits until the graphs that contain its
  // calls are destroyed; this function does not.
  void abort() noexcept;
  // Ends the communicator when all queued operations are done here. Data that peers have yet to receive still reaches
  // them, within `at_most`.
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
  template <typename Call> void run(const Call& call, const char* name);
  void must(ncclResult_t result, const char* call);
  bool is_ready(const char* call);
  void throw_if_over() const;
  void await_abort(std::chrono::milliseconds at_most) const noexcept;
  void await_ready(const char* call, std::chrono::milliseconds timeout, const std::function<void()>& keep_waiting);
  std::size_t ranks() const { return static_cast<std::size_t>(place_.world_size); }

  const Api& api_;
  Place place_;
  const Stream& stream_;
  std::mutex mutex_;  // held during NCCL's calls; abort() does not take it while a call blocks
  ncclComm_t communicator_ = nullptr;
  std::atomic<bool> over_{false};  // aborted, or finished
  mutable std::mutex abort_mutex_;
  std::shared_future<void> aborting_;                   // set by an abort; ready when NCCL has released everything
  std::vector<std::pair<void*, void*>> registrations_;  // memory, and NCCL's handle for it
  const std::function<void()>* look_ = nullptr;         // of the operation under way
  bool is_in_group_ = false;                            // if true, calls do not block
  std::unique_ptr<CallWatch> watch_;                    // only of a blocking communicator
};

}  // namespace lockstep::nccl
