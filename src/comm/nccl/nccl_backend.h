// The GPU backend: NCCL moves the data, and a CPU backend watches the ranks.
//
// A call is queued on a separate high-priority stream, after the current work of the default stream, and returns: the
// host does not wait for the device, only for NCCL to queue the call (docs/gpu.md), and an event orders the reader of
// the result after it. Concurrently, in a thread, the ranks compare their calls over the backend `host` in the same
// order. That detects calls that differ and peers that died or stay away (MismatchError, PeerLost, TimeoutError, as on
// the CPU), and ends the kernels that wait in vain. The data path itself checks nothing.
//
// Messages pass through pinned host memory and the group's backend for it: see staged_messages.h.
//
// Bits: sums are NCCL's, the same on all ranks and in every run with the same ranks, as long as
// NCCL_ALGO=^NVLS,NVLSTree holds (which is set unless the user chose another value).
#pragma once

#include <memory>
#include <string>

#include "lockstep/comm/backend.h"
#include "lockstep/comm/backend_context.h"
#include "lockstep/core/device.h"
#include "src/comm/nccl/nccl_api.h"

namespace lockstep {

namespace nccl {
class Queue;
class StagedMessages;
}  // namespace nccl

// Collective over the ranks that meet in the context's store, for the context's device. Throws InvalidArgument if two
// ranks have the same GPU (unless LOCKSTEP_SHARE_GPU allows it), and Error if NCCL is missing. `make_host` makes the
// host-memory backend that compares the ranks' calls.
using MakeBackend = std::unique_ptr<Backend> (*)(const BackendContext&);
std::unique_ptr<Backend> make_nccl_backend(const BackendContext& context, MakeBackend make_host);
// The same with another NCCL library than this process's.
std::unique_ptr<Backend> make_nccl_backend(const BackendContext& context, MakeBackend make_host, const nccl::Api& api);

// Throws InvalidArgument if this rank has no GPU, or NCCL cannot be loaded. `device` is this rank's; null means
// local_device().
void check_gpu_and_nccl(const Place& place, const Device* device);

class NcclBackend : public Backend {
 public:
  // `watch` compares the calls: a CPU backend over the same ranks, without other users. It also carries the messages,
  // unless the context has a backend for host memory.
  NcclBackend(const BackendContext& context, std::unique_ptr<Backend> watch, const nccl::Api& api);
  ~NcclBackend() override;

  std::string_view name() const override { return "nccl"; }
  std::string_view transport() const override { return "nccl"; }
  void run(const Operation& operation) override { start(operation).wait(); }
  Work start(const Operation& operation) override;
  Work start_chained(const Operation& operation, const Work& first) override;
  void await_idle() noexcept override;
  Work send(const Message& message) override;
  Work receive(const Message& message) override;
  Buffer allocate(std::size_t bytes) override;
  void abort(const std::string& reason) override;
  void throw_if_over(const std::function<std::string()>& doing) override;
  void begin_capture() override;
  std::uint64_t end_capture() override;
  Work start_replay(const Operation& replay) override;
  void leave() noexcept override;
  TransportCounters counters() const override { return {}; }
  void on_over(std::function<void(const std::string&)> call) override;

 private:
  // Works may outlive the backend.
  const std::shared_ptr<nccl::Queue> queue_;
  Backend& carrier_;
  const std::shared_ptr<nccl::StagedMessages> messages_;
};

}  // namespace lockstep
