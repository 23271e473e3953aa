// DistributedDataParallel averages the gradients of a module over all ranks while backward runs.
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
#include "lockstep/ddp/equal_replicas.h"
#include "lockstep/ddp/graph.h"
#include "lockstep/nn/module.h"
#include "lockstep/reduce/reducer.h"

#pragma GCC visibility push(default)
namespace lockstep {

struct [[gnu::visibility("hidden")]] PassAccess;  // internal

// Wraps a module that every rank built alike. Construction is collective: it compares options and the parameters'
// number, names and shapes with rank 0's (MismatchError with the first difference; a refused option is InvalidArgument
// on all ranks), broadcasts rank 0's parameters and buffers, moves every gradient into its slot of a bucket and
// installs the hooks. From then on backward() averages the gradients while it runs; when it returns they are final. A
// parameter can have only one wrapper at a time.
//
// A pass that leaves a parameter without a gradient is an error unless an option allows it (ddp/ddp_options.h). Its
// rank completes the pass with zeros, so that no rank waits, and then ends the group with a message that has rank, step
// and parameters: InvalidArgument there, PeerLost with the same text from the current or next call of the other ranks.
// The same happens if a forward finds that the module has changed or, in a job of several ranks, that a parameter is no
// longer frozen. Each pass's first call compares the ranks' positions: if one skipped a batch or has other learning
// rates, weights or trained parameters, all ranks throw MismatchError with the difference. Rank 0 logs a warning for a
// gradient of a tensor that is not a parameter, and for a parameter frozen after wrapping (docs/ddp.md).
//
// Buckets are first planned in the reverse order of the parameters, and again at the end of the first pass, in the
// order in which rank 0's gradients became ready (not with find_unused_parameters, where the order varies). grad(), and
// tensors that it returned, move with their values; views of them and pointers keep the old memory.
//
// A world of one works the same without communication. The module must outlive the wrapper (else forward() and module()
// throw InvalidArgument), and its parameters must not be replaced or moved. Run backward on the thread that runs the
// other collectives. On a GPU the host does not wait for the device from zero_grad() to the end of step()
// (docs/gpu.md); backward returns with the default stream ordered after the all-reduces. set_weight() and join() before
// a pass's first bucket, and find_unused_parameters at its end, wait for the other ranks' hosts.
class DistributedDataParallel {
 public:
  DistributedDataParallel(nn::Module& module, std::shared_ptr<ProcessGroup> group,
                          const DistributedDataParallelOptions& options = {});
  ~DistributedDataParallel();

  // Calls the module's forward with the same arguments (nn/module.h). Backward may go through any outputs, of one call
  // or several, and reduces once. Ranks may use different outputs (.find_unused_parameters), but all must run equally
  // many backward passes.
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
  // Returns the parameters for an optimizer: those that require a gradient and are not ignored, each once, with the
  // module's names.
  std::vector<NamedTensor> parameters() const;
  const std::vector<std::string>& ignored_parameters() const;  // of the options

  // While it is alive, backward adds to the local gradients without communication: gradient accumulation. With several
  // ranks, an optimizer's step() refuses such gradients until a pass without it has averaged them, or
  // mark_grad_written() declares that the program has.
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

  // Sets the weight of this rank's gradients in the next reduced pass: the number of samples of its loss, if that is
  // their mean. The result is then the mean over all ranks' samples even if some have a smaller last batch. Applies to
  // one pass; all ranks must set one for the same passes. Equal weights give the bits of the plain mean. Costs 16 bytes
  // per rank, gathered while the first bucket fills. A weight that is not finite and above 0 makes that backward throw
  // InvalidArgument on all ranks. Not with SyncBatchNorm.
  void set_weight(double samples);
  bool has_weight() const;

  // Collective, at the start of an epoch, with the number of backward passes that this rank will run in it. If the
  // numbers differ, throws MismatchError with all of them on all ranks; the group stays usable. Blocks until all ranks
  // have called it. Without it, a rank with more steps than the others waits in its first extra step until the
  // deadline. Throws InvalidArgument in join().
  void begin_epoch(std::int64_t steps);

  // For uneven data. Runs this rank's steps in `train`, then takes part with zeros in the other ranks' reductions until
  // all have finished. Collective. Inside, ranks make no collective calls except this wrapper's passes, and each
  // backward follows a zero_grad(). Costs one small exchange per backward and per forward that sends buffers. Not with
  // static_graph, SyncBatchNorm or capture(). An exception of `train` or after_step on one rank ends the group: the
  // others throw PeerLost with the same text. The Error of a backward that throws on all ranks
  // (OnNonfiniteGradient::kThrow, an invalid weight) does not: either all ranks with data catch it in `train` and
  // continue, and those without data follow, or it leaves `train` on all and join() throws it on every rank.
  void join(const std::function<void()>& train, const JoinOptions& options = {});
  bool is_joining() const;

  // Returns the norm over all averaged gradients of the last reduced pass, before clipping and without the loss scale;
  // the same on all ranks unless a comm_hook leaves them different gradients. 0 before the first pass. Blocks until the
  // device is done. Throws InvalidArgument unless max_grad_norm or on_nonfinite_gradient is set.
  float last_grad_norm() const;
  OnNonfiniteGradient on_nonfinite_gradient() const;
  // The number of passes that kSkipStep skipped, and the warning of the last one, on all ranks; "" if none.
  std::int64_t skipped_steps() const;
  const std::string& last_skipped() const;

  // Rebuilds the buckets for this order of parameters, given by the reducer's names, each once: the order in which
  // gradients became ready in the run that wrote a checkpoint. Collective, between passes. Throws InvalidArgument for
  // other names. The first pass then does not change the buckets.
  void rebuild_buckets(const std::vector<std::string>& order);
  bool has_rebuilt_buckets() const;  // by a pass or by rebuild_buckets()
  bool rebuilds_buckets() const;     // whether the next reduced pass will do so

  const Reducer& reducer() const;
  const CommHook& comm_hook() const;  // empty: average
  bool synchronizes() const;          // false under no_sync()
  bool finds_unused_parameters() const;

 private:
  friend struct PassAccess;  // src/ddp/checks/pass_partner.h
  class Impl;
  Tensor forward_for_one(const Tensors& inputs);

  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
#pragma GCC visibility pop
