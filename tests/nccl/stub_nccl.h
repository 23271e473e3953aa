// A stub of NCCL for tests: a library with NCCL's functions whose ranks are threads of one process and whose streams
// are those of RecordingDevice. It moves and sums real data as NCCL does: a separate thread queues a call unless the
// communicator blocks, sums follow a ring that begins at a different rank for each chunk, and every hop rounds to the
// element's type. It fails on demand.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>

namespace lockstep::testing {

constexpr int kForEver = std::numeric_limits<int>::max();

// Exported in addition to NCCL's functions: stub_nccl_control().
struct StubNccl {
  // The next call of the function with this name in this process fails with the result; null: none.
  std::atomic<const char*> fail_call{nullptr};
  std::atomic<int> fail_result{0};
  // The result of ncclCommGetAsyncError for every communicator from now on; 0: the real state.
  std::atomic<int> async_error{0};
  std::atomic<int> async_errors_told{0};  // how often it was returned
  // For each communicator, this many calls of ncclCommGetAsyncError return ncclInProgress first. kForEver: the peers of
  // later calls do not arrive, and those of a blocking communicator wait for them.
  std::atomic<int> polls_until_ready{3};
  // Queued operations stay unfinished until aborted, as if a peer's GPU never arrived.
  std::atomic<bool> stall{false};

  std::atomic<int> communicators{0};    // made, and not destroyed or aborted yet
  std::atomic<int> registrations{0};    // of memory, not released yet
  std::atomic<int> allocations{0};      // not freed yet
  std::atomic<int> reductions_made{0};  // made by ncclRedOpCreatePreMulSum, not destroyed yet
  std::atomic<int> aborts{0};
  std::atomic<int> finalized{0};
  std::atomic<int> version{22809};
};

using StubNcclControl = StubNccl* (*)();

}  // namespace lockstep::testing
