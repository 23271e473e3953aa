// A process group of Lockstep as a backend of torch.distributed, for CPU tensors.
//
// All calls may come from any thread; collectives run in the order of issue, one at a time (call_queue.h). A call
// checks its tensors before it is counted, and refuses with RuntimeError. What happens later is thrown by wait(): a
// lost peer, a deadline, ranks that disagree (torch.distributed.DistBackendError, with our text).
//
// Memory: a contiguous tensor of a type that the group has is used in place; others are copied in and out (operand.h).
// The tensors of a call belong to it until its Work is done, which holds references to them.
#pragma once

#include <ATen/record_function.h>
#include <c10/util/FunctionRef.h>
#include <sys/types.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "python/backend/call_queue.h"
#include "python/backend/fork_count.h"
#include "python/backend/message_work.h"
#include "python/backend/operand.h"

namespace lockstep::torch_backend {

class LockstepBackend : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<Tensors>;
  using WorkPointer = c10::intrusive_ptr<c10d::Work>;

  // Joins the ranks that meet in `store`. Blocks; throws DistBackendError that names the missing ranks.
  LockstepBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::chrono::milliseconds timeout);
  ~LockstepBackend() override;

  const std::string getBackendName() const override { return "lockstep"; }
  c10::intrusive_ptr<Options> getBackendOptions() override;
  void setTimeout(std::chrono::milliseconds timeout) override { timeout_.store(timeout); }
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  WorkPointer endCoalescing() override;
  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override { return calls_.load(); }
  c10d::ErrorType getError() override { return error_.load(); }
  void abort() override;     // ends the group on all ranks
  void shutdown() override;  // leaves it: waits for the collective that runs, drops the others

  WorkPointer broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPointer allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPointer allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPointer allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  WorkPointer reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPointer allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPointer all_gather_single(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPointer allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                  const c10d::AllgatherOptions& options) override;
  WorkPointer all_gather_single_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPointer gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPointer gather_single(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& options) override;
  WorkPointer scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) override;
  WorkPointer reduce_scatter(Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& options) override;
  WorkPointer reduce_scatter_single(at::Tensor& output, at::Tensor& input,
                                    const c10d::ReduceScatterOptions& options) override;
  WorkPointer reduce_scatter_single_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::ReduceScatterOptions& options) override;
  WorkPointer all_to_all_single(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_splits,
                                std::vector<std::int64_t>& input_splits, const c10d::AllToAllOptions& options) override;
  WorkPointer alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  WorkPointer send(Tensors& tensors, int to, int tag) override;
  WorkPointer recv(Tensors& tensors, int from, int tag) override;
  WorkPointer recvAnysource(Tensors& tensors, int tag) override;
  WorkPointer barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_for_all) override;

 private:
  // A collective before it is issued.
  struct Call {
    c10d::OpType type;
    const char* title;  // "lockstep:all_reduce", for the profiler
    std::chrono::milliseconds timeout;
    bool is_async;
    Tensors inputs;  // if there is a profiler
    Tensors outputs;
  };
  // `run(const CallOptions&)` makes the call of the group.
  template <typename Run> WorkPointer issue(Call call, Run run) {
    CallOptions options;
    options.timeout = call.timeout.count() > 0 ? call.timeout : timeout_.load();
    return issue_job(std::move(call), [this, options, run = std::move(run)]() mutable {
      run_guarded([&run, &options] { run(options); });
    });
  }
  WorkPointer issue_job(Call call, std::function<void()> job);
  void run_guarded(c10::function_ref<void()> run);
  WorkPointer keep_if_coalescing(WorkPointer work);
  void note_failure(c10d::ErrorType kind);
  void check_usable(const char* call) const;
  void check_root(const char* call, std::int64_t root) const;
  void check_single(const char* call, const Tensors& tensors) const;
  void check_parts(const char* call, const Tensors& parts, const at::Tensor& like) const;
  void check_flat(const char* call, const at::Tensor& whole, const at::Tensor& part) const;
  WorkPointer message(const char* call, const char* title, c10d::OpType type, Tensors& tensors, int peer, int tag);
  std::vector<std::size_t> counts_of(const char* call, const at::Tensor& tensor,
                                     const std::vector<std::int64_t>& splits, std::size_t items) const;
  template <typename Options> Call call_of(c10d::OpType type, const char* title, const Options& options,
                                           const Tensors& inputs, Tensors outputs) const {
    return {type, title, options.timeout, options.asyncOp, at::hasCallbacks() ? inputs : Tensors(), std::move(outputs)};
  }

  const OwnProcess process_;
  std::atomic<std::chrono::milliseconds> timeout_;
  std::shared_ptr<ProcessGroup> group_;
  std::shared_ptr<CallQueue> queue_;
  std::shared_ptr<MessagePump> pump_;
  std::atomic<std::uint64_t> calls_{0};
  std::atomic<c10d::ErrorType> error_{c10d::ErrorType::SUCCESS};
  std::mutex message_mutex_;  // one thread at a time begins a message
  std::atomic<bool> is_coalescing_{false};
  std::mutex coalescing_mutex_;
  std::optional<std::vector<WorkPointer>> coalescing_;
  std::atomic<bool> has_left_{false};
};

}  // namespace lockstep::torch_backend
