// DistributedDataParallel: the one place where the reducer meets autograd.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/ddp_options.h"
#include "lockstep/ddp/graph.h"
#include "lockstep/nn/module.h"
#include "lockstep/reduce/reducer.h"

#pragma GCC visibility push(default)
namespace lockstep {

struct [[gnu::visibility("hidden")]] PassAccess;  // the library's own

// Wraps a module that every rank built alike. Construction is collective: compares the options, and the parameters'
// count, names and shapes with rank 0's (MismatchError names the first difference; an option that is refused is
// InvalidArgument on all ranks), broadcasts rank 0's parameters and buffers, moves every gradient into its slot of a
// bucket, installs the hooks. From then on backward() averages the gradients over all ranks by itself, while it runs;
// when it returns they are final. A parameter has one wrapper at a time.
//
// A pass that leaves a parameter without a gradient is an error unless an option allows it (ddp/options.h): its rank
// completes the pass with zeros, so that no rank waits, then ends the group with a message that names rank, step and
// parameters: InvalidArgument there, PeerLost with the same text from the call under way, or the next one, of the other
// ranks. So does a forward that finds the module changed since, by a parameter that is no longer frozen, too (in a job
// of several ranks). The first pass that computes a gradient of a tensor which is none of the parameters, and the first
// forward after one of them was frozen, warn, on rank 0 alone. Each pass's first call compares where the ranks stand:
// MismatchError on all of them, with the difference, where one has left a batch out, or has other learning rates,
// weights or trained parameters. See docs/ddp.md, "Ranks out of step".
//
// Buckets are planned for gradients that come in the reverse order of the parameters, and once more at the end of the
// first pass, in the order in which rank 0's came in it: a collective call of its own. grad(), and tensors that it
// returned, move along with their values; views of them, and pointers, keep the memory of before. Not with
// find_unused_parameters, by which the order changes from pass to pass.
//
// With a world of one nothing is communicated, everything else is the same. The module must outlive the wrapper
// (InvalidArgument from forward() and module() otherwise); its parameters must not be replaced or moved afterwards.
// Backward must run on the thread that runs the other collectives.
//
// On a GPU the host does not wait for the device between zero_grad() and the end of step(), only for NCCL to queue a
// bucket's call (see docs/gpu.md): all-reduces run on a stream of their own, and backward leaves the default stream
// ordered behind them. A failed one is thrown by the first call that comes to know of it. Three options make it wait
// for the other ranks' hosts, not for a device: set_weight() and join() before a pass's first bucket,
// find_unused_parameters at its end.
class DistributedDataParallel {
 public:
  DistributedDataParallel(nn::Module& module, std::shared_ptr<ProcessGroup> group,
                          const DistributedDataParallelOptions& options = {});
  ~DistributedDataParallel();

  // The module's forward, called as the module is (see nn/module.h). A backward may go through any of the outputs, of
  // one call or several: it reduces once. Ranks may use different outputs (.find_unused_parameters); each must run as
  // many backward passes as the others.
  Tensor forward(const Tensor& x);
  Tensors forward_all(const Tensors& inputs);
  Tensor operator()(const Tensor& x) { return forward(x); }
  Tensors operator()(const Tensors& inputs) { return forward_all(inputs); }
  template <typename... More>
  requires(std::convertible_to<const More&, Tensor>&&...) Tensor operator()(const Tensor& first, const Tensor& second,
                                                                            const More&... more) {
    return forward_for_one({first, second, more...});
  }

  nn::Module& module() const;
  ProcessGroup& group() const;
  // The parameters for an optimizer: those that want a gradient, each once, under the bare module's names; not
  // the ignored ones.
  std::vector<NamedTensor> parameters() const;
  const std::vector<std::string>& ignored_parameters() const;  // of the options: names of what is each rank's own

  // While one lives, backward adds to the local gradients and communicates nothing: gradient accumulation. Of several
  // ranks, an optimizer's step() refuses such gradients until a pass outside has averaged them, or mark_grad_written()
  // says that the program has.
  class NoSync {
   public:
    explicit NoSync(DistributedDataParallel& ddp);
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    DistributedDataParallel& ddp_;
    bool before_;
  };
  [[nodiscard]] NoSync no_sync() { return NoSync(*this); }

  // Graph mode, for GPUs: see ddp/graph.h. Throws InvalidArgument for a model on the CPU.
  CapturedStep capture(std::function<Tensor()> step, const CaptureOptions& options = {}) {
    return {*this, std::move(step), options};
  }

  // The weight of this rank's gradients in the next pass that is reduced: the number of samples of its loss, where that
  // is their mean. The result is then the mean over all ranks' samples although a last batch is smaller on some. For
  // one pass; all ranks set one for the same passes. Equal weights give the bits of the plain mean. Costs 16 bytes a
  // rank, gathered while the first bucket fills. A weight that is not a finite number above 0 is InvalidArgument on all
  // ranks in that backward. Not with SyncBatchNorm.
  void set_weight(double samples);
  bool has_weight() const;

  // Collective, at an epoch's start, with the number of backward passes that this rank will run in it: MismatchError
  // with all numbers, on all ranks, when they differ; the group goes on. Else nothing changes. Blocks until all ranks
  // have called it. Without it a rank with more steps than the others waits in the first one too many until its
  // deadline. Not in join(): InvalidArgument.
  void begin_epoch(std::int64_t steps);

  // Uneven data: `train` runs this rank's steps, as many as it has; then this rank takes part in what the others still
  // reduce, with zeros, until all are through. Collective. Inside, ranks make no collective calls but this wrapper's
  // passes, and each backward follows a zero_grad(). One more small exchange a backward, and a forward that sends
  // buffers. Not with static_graph, SyncBatchNorm, nor capture(). What `train` or after_step throws on one rank ends
  // the group: the others throw PeerLost with the same text. The Error of a backward that all ranks throw
  // (OnNonfiniteGradient::kThrow, a weight that is none) does not: all ranks with data catch it inside `train` and go
  // on, and those without follow, or it leaves `train` on all, and join() throws it on every rank.
  void join(const std::function<void()>& train, const JoinOptions& options = {});
  bool is_joining() const;

  // With max_grad_norm or on_nonfinite_gradient, InvalidArgument without: the norm over all averaged gradients of the
  // last pass that was reduced, before they were clipped, without the loss scale; the same on all ranks unless a
  // comm_hook leaves them different gradients. 0 before the first pass. Waits for the device.
  float last_grad_norm() const;
  OnNonfiniteGradient on_nonfinite_gradient() const;
  // Passes that kSkipStep made none of, and the warning of the last one, on all ranks; "" when there was none.
  std::int64_t skipped_steps() const;
  const std::string& last_skipped() const;

  // The buckets in this order of parameters, by the reducer's names, each once: as gradients came in the run that a
  // checkpoint is of. Collective, between passes; InvalidArgument for other names. The first pass then changes nothing
  // more.
  void rebuild_buckets(const std::vector<std::string>& order);
  bool has_rebuilt_buckets() const;  // by a pass, or by the call
  bool rebuilds_buckets() const;     // at the end of the next pass that is reduced

  const Reducer& reducer() const;
  const CommHook& comm_hook() const;  // empty: average
  bool synchronizes() const;          // not under no_sync()
  bool finds_unused_parameters() const;

 private:
  friend struct PassAccess;  // src/ddp/checks/pass_partner.h
  class Impl;
  Tensor forward_for_one(const Tensors& inputs);

  std::unique_ptr<Impl> impl_;
};

// SHA-256 over names, shapes and bytes of the tensors, in hex: equal on ranks whose replicas are equal bit for bit.
std::string hash_of(const std::vector<NamedTensor>& tensors);
// Throws MismatchError that names the ranks whose hash differs from rank 0's. Collective.
void check_replicas_equal(ProcessGroup& group, const std::vector<NamedTensor>& tensors, const char* what);

}  // namespace lockstep
#pragma GCC visibility pop
