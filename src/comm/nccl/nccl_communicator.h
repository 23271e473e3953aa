// A non-blocking NCCL communicator: no call of it waits for peers without a deadline.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/operation.h"
#include "lockstep/core/place.h"
#include "src/comm/nccl/nccl_api.h"

namespace lockstep::nccl {

// enqueue(), allocate() and free() by one thread at a time; abort() and check() from any.
class Communicator {
 public:
  // Collective. `keep_waiting` is called while peers are awaited and throws to end that; so does the deadline (TimeoutError).
  Communicator(const Api& api, const Place& place, const ncclUniqueId& id, std::chrono::milliseconds timeout,
               const std::function<void()>& keep_waiting);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Queues the operation on `stream`. Not for barriers and allocations, which move nothing.
  void enqueue(const Operation& operation, cudaStream_t stream);

  // Memory that NCCL sends from and receives into in place. Throws Error when it is exhausted.
  void* allocate(std::size_t bytes);
  void free(void* memory) noexcept;  // also after abort()

  // Throws what went wrong in an operation that was queued before.
  void check();
  // Ends kernels that wait for peers. Nothing can be queued afterwards.
  void abort() noexcept;

 private:
  class Reduction;
  void plain(const Operation& operation, ncclRedOp_t reduction, cudaStream_t stream);
  void grouped(const Operation& operation, cudaStream_t stream);
  void coalesced(const Operation& operation, ncclRedOp_t reduction, cudaStream_t stream);
  void exchange(const std::byte* send, const std::vector<std::size_t>& send_counts, std::byte* receive,
                const std::vector<std::size_t>& receive_counts, DType dtype, cudaStream_t stream);
  void must(ncclResult_t result, const char* call);
  bool is_ready(const char* call);
  void throw_if_aborted() const;
  void await_ready(const char* call, std::chrono::milliseconds timeout, const std::function<void()>& keep_waiting);
  std::size_t ranks() const { return static_cast<std::size_t>(place_.world_size); }

  const Api& api_;
  Place place_;
  std::mutex mutex_;  // abort() against the rest
  ncclComm_t communicator_ = nullptr;
  bool aborted_ = false;
  std::chrono::milliseconds timeout_;
  std::vector<std::pair<void*, void*>> registrations_;  // memory, and NCCL's handle of it
};

}  // namespace lockstep::nccl
