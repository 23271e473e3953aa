// NCCL as the tests have it: a library with its functions whose ranks are threads of one process and whose streams are
// those of RecordingDevice. It moves and sums real data as NCCL does: a call is queued by a thread of its own unless
// the communicator blocks, sums follow a ring that begins elsewhere for each chunk, and every hop rounds to the
// element's type. It fails on demand.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>

namespace lockstep::testing {

constexpr int kForEver = std::numeric_limits<int>::max();

// What the library exports beside NCCL's functions: stub_nccl_control().
struct StubNccl {
  // The next call of that function (its name) in this process fails with the result; null: none.
  std::atomic<const char*> fail_call{nullptr};
  std::atomic<int> fail_result{0};
  // What ncclCommGetAsyncError reports of every communicator from now on; 0: the truth.
  std::atomic<int> async_error{0};
  std::atomic<int> async_errors_told{0};  // so often it has
  // So many calls of ncclCommGetAsyncError report ncclInProgress first, for each communicator; kForEver: the peers of
  // later calls do not come, and those of a communicator that blocks wait for them.
  std::atomic<int> polls_until_ready{3};
  // Operations that are queued stay unfinished until aborted, as when a peer's GPU never comes.
  std::atomic<bool> stall{false};

  std::atomic<int> communicators{0};    // made and not yet destroyed or aborted
  std::atomic<int> registrations{0};    // of memory, not taken back
  std::atomic<int> allocations{0};      // not freed
  std::atomic<int> reductions_made{0};  // ncclRedOpCreatePreMulSum, not destroyed
  std::atomic<int> aborts{0};
  std::atomic<int> finalized{0};
  std::atomic<int> version{22809};
};

using StubNcclControl = StubNccl* (*)();

}  // namespace lockstep::testing
