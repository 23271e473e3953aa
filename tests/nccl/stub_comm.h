// The communicator of the NCCL stub, and the control by which tests make it fail.
#pragma once

#include <nccl.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <thread>

#include "tests/nccl/stub_nccl.h"
#include "tests/nccl/stub_world.h"

namespace lockstep::testing {

inline StubNccl control;

inline ncclResult_t fails(const char* call) {
  const char* const wanted = control.fail_call.load();
  if (wanted == nullptr || std::strcmp(wanted, call) != 0) return ncclSuccess;
  control.fail_call.store(nullptr);
  return static_cast<ncclResult_t>(control.fail_result.load());
}

}  // namespace lockstep::testing

struct ncclComm {
  std::shared_ptr<lockstep::testing::World> world;
  int rank = 0, ranks = 0;
  std::size_t grouped = 1;  // number of calls that were launched together with the current one
  std::thread launcher;     // of the last call, or group of calls
  std::atomic<bool> is_launching{false};
  std::atomic<int> polls{0};
  bool blocks = false;
  std::atomic<int> inside{0};     // number of blocking calls
  std::map<int, double> factors;  // by the reduction's number
  int next_op = 100;
  // Held by captured work: like NCCL's, a communicator does not end before the graphs that use it.
  std::shared_ptr<int> graphs = std::make_shared<int>(0);
  bool is_finalizing = false;

  bool is_in_graphs() const { return graphs.use_count() > 1; }
  // Like NCCL's non-blocking communicators: no call is allowed while the last one is under way.
  bool is_busy() const {
    using lockstep::testing::control;
    using lockstep::testing::kForEver;
    return !blocks && (is_launching.load() || (polls.load() < control.polls_until_ready.load() &&
                                               control.polls_until_ready.load() != kForEver));
  }
  // For a blocking communicator: returns when the peers have arrived, or the reason why they do not.
  ncclResult_t await_peers() {
    using lockstep::testing::control;
    using lockstep::testing::kForEver;
    ncclResult_t result = ncclInProgress;
    while (result == ncclInProgress) {
      if (const auto error = static_cast<ncclResult_t>(control.async_error.load()); error != ncclSuccess) {
        ++control.async_errors_told;
        result = error;
      } else if (world->is_aborted_now(rank)) {
        result = ncclInternalError;
      } else if (control.polls_until_ready.load() != kForEver) {
        result = ncclSuccess;
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    return result;
  }

  ~ncclComm() {
    if (launcher.joinable()) launcher.join();
  }
};
