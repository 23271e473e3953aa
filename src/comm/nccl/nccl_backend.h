// The GPU backend: NCCL moves the data, a ring backend on the CPU looks after the ranks.
//
// A call is queued on a high-priority stream of its own, behind what the default stream holds by then, and returns: the host waits for
// nothing, and who reads the result is ordered behind it by an event. Beside that, in a thread, the ranks exchange their calls over the
// CPU's ring in the same order: calls that disagree, a peer that died or stays away come to light there (MismatchError, PeerLost,
// TimeoutError, as on the CPU), and end the kernels that wait in vain. The data path itself checks nothing.
//
// Bits: sums are NCCL's, the same on all ranks and in every run with the same ranks, as long as NCCL_ALGO=^NVLS holds (set unless the user
// chose).
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "lockstep/comm/backend.h"
#include "lockstep/core/device.h"
#include "src/comm/nccl/nccl_communicator.h"

namespace lockstep {

// Collective over the ranks that meet in the context's store. Throws InvalidArgument when two ranks have the same GPU (unless that is
// allowed: LOCKSTEP_SHARE_GPU), Error when NCCL is not there.
std::unique_ptr<Backend> make_nccl_backend(const BackendContext& context, Device& device);

class NcclBackend : public Backend {
 public:
  // `watch` compares the calls: a CPU backend over the same ranks, used by nobody else.
  NcclBackend(const BackendContext& context, Device& device, std::unique_ptr<Backend> watch, const nccl::Api& api);
  ~NcclBackend() override;

  std::string_view name() const override { return "nccl"; }
  std::string_view transport() const override { return "nccl"; }
  void run(const Operation& operation) override { start(operation).wait(); }
  Work start(const Operation& operation) override;
  Buffer allocate(std::size_t bytes) override;
  void abort(const std::string& reason) override;
  void leave() noexcept override;
  TransportCounters counters() const override { return {}; }

 private:
  class Queue;
  std::shared_ptr<Queue> queue_;  // a Work may outlive the backend
};

}  // namespace lockstep
