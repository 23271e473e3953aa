// DistributedDataParallel for models of LibTorch, PyTorch's C++ API. Link `Lockstep::torch` (CMake) or `lockstep-torch`
// (pkg-config); docs/libtorch.md has a program.
//
//   auto net = std::make_shared<Net>();  // a torch::nn::Module, or a holder made by TORCH_MODULE
//   auto ddp = lockstep::torch_ddp(net, group);
//   torch::optim::SGD sgd(net->parameters(), 0.1);
//   sgd.zero_grad();
//   torch::nn::functional::cross_entropy(ddp(images), labels).backward();  // averages gradients while it runs
//   sgd.step();
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/reduce/comm_hook.h"
#include "lockstep/reduce/pass_options.h"
#include "lockstep/reduce/reducer.h"

#pragma GCC visibility push(default)
namespace lockstep {

// As in DistributedDataParallelOptions (ddp/ddp_options.h); the same on all ranks.
struct TorchDdpOptions {
  std::vector<double> bucket_cap_mb = {1, 25};
  bool forward_sync_buffers = true;
  bool find_unused_parameters = false;
  bool static_graph = false;
  std::vector<std::string> ignored_parameters = {};
  CommHook comm_hook = {};  // empty: average
  OnNonfiniteGradient on_nonfinite_gradient = OnNonfiniteGradient::kIgnore;
};

// The part of TorchDdp<Module> that does not depend on the type of the module.
//
// Construction is collective: it compares the options, then the number, names, shapes, strides and types of parameters
// and buffers with rank 0's (MismatchError with the first difference), and sends rank 0's values to all ranks. Every
// gradient is a view of its slot in a bucket; one that was dropped (zero_grad()) or replaced is copied into the slot
// when backward has computed it. When backward() returns, all gradients are averages. After the first pass the buckets
// are planned again in the order in which rank 0's gradients became ready (not with find_unused_parameters): take
// grad() of a parameter after a pass, not before. On a GPU, streams wait instead of the host.
//
// Refused on all ranks, by name, with InvalidArgument: parameters and buffers that are not all on the CPU or all on the
// group's GPU; complex, sparse or overlapping (expand()) ones that require a gradient; ones that another TorchDdp has.
// Sparse gradients end the group, and so does a pass that torch captures as a CUDA graph, or a module with parameters or
// buffers that were added, removed, replaced, converted or frozen after wrapping: InvalidArgument, and PeerLost with
// the same text on the other ranks. A process that was forked after wrapping gets InvalidArgument.
// torch::autograd::grad() does not reduce. Run backward on the thread that runs the group's other collectives.
class TorchDdpBase {
  class Impl;

 public:
  TorchDdpBase(std::shared_ptr<torch::nn::Module> module, std::shared_ptr<ProcessGroup> group,
               const TorchDdpOptions& options);
  TorchDdpBase(TorchDdpBase&&) noexcept;
  ~TorchDdpBase();  // the parameters keep their gradients
  ProcessGroup& group() const;
  const Reducer& reducer() const;

  // While it is alive, backward only adds to the local gradients. The next backward without it averages the sum.
  class NoSync {
   public:
    explicit NoSync(TorchDdpBase& ddp);
    ~NoSync();
    NoSync(const NoSync&) = delete;

   private:
    const std::shared_ptr<Impl> impl_;
    const bool before_;
  };
  [[nodiscard]] NoSync no_sync() { return NoSync(*this); }

  // The same as in DistributedDataParallel (ddp/ddp.h), with the same errors. set_weight() and join() need gradients of
  // float32, float16 or bfloat16.
  void set_weight(double samples);
  void begin_epoch(std::int64_t steps);
  void join(const std::function<void()>& train, const JoinOptions& options = {});

  // The number of passes that kSkipStep skipped, and the warning of the last one, on all ranks; "" if none.
  std::int64_t skipped_steps() const;
  const std::string& last_skipped() const;

 protected:
  void begin_forward();
  // A pass through `output` reduces even if it reaches none of the parameters, because the other ranks wait for it.
  void reduce_at_end_of(const torch::Tensor& output);

 private:
  std::shared_ptr<Impl> impl_;
};

namespace internal {
// Calls function(tensor) for each tensor in a result of forward(): a tensor, or optionals, tuples and ranges of them.
template <typename Result, typename Function> void each_tensor(const Result& result, const Function& function) {
  if constexpr (std::is_convertible_v<const Result&, const torch::Tensor&>)
    function(static_cast<const torch::Tensor&>(result));
  else if constexpr (requires { result.has_value(), *result; }) {
    if (result.has_value()) each_tensor(*result, function);
  } else if constexpr (requires { std::tuple_size<Result>::value; })
    std::apply([&](const auto&... parts) { (each_tensor(parts, function), ...); }, result);
  else if constexpr (std::is_class_v<Result> && requires { result.begin() != result.end(); })
    for (const auto& part : result) each_tensor(part, function);
}
}  // namespace internal

template <typename Module> class TorchDdp : public TorchDdpBase {
 public:
  TorchDdp(std::shared_ptr<Module> module, std::shared_ptr<ProcessGroup> group, const TorchDdpOptions& options = {})
      : TorchDdpBase(module, std::move(group), options), module_(std::move(module)) {}

  // Calls the module's forward() and returns its result; in training mode, sends rank 0's buffers to all ranks before.
  template <typename... Args> auto forward(Args&&... args) {
    begin_forward();
    if constexpr (std::is_void_v<decltype(module_->forward(std::forward<Args>(args)...))>) {
      module_->forward(std::forward<Args>(args)...);
    } else {
      auto result = module_->forward(std::forward<Args>(args)...);
      internal::each_tensor(result, [this](const torch::Tensor& output) { reduce_at_end_of(output); });
      return result;
    }
  }
  template <typename... Args> auto operator()(Args&&... args) { return forward(std::forward<Args>(args)...); }
  const std::shared_ptr<Module>& module() const { return module_; }

 private:
  std::shared_ptr<Module> module_;
};

template <typename Module> TorchDdp<Module> torch_ddp(std::shared_ptr<Module> module,
                                                      std::shared_ptr<ProcessGroup> group,
                                                      const TorchDdpOptions& options = {}) {
  return {std::move(module), std::move(group), options};
}
template <typename Module> TorchDdp<Module> torch_ddp(const torch::nn::ModuleHolder<Module>& holder,
                                                      std::shared_ptr<ProcessGroup> group,
                                                      const TorchDdpOptions& options = {}) {
  return {holder.ptr(), std::move(group), options};
}

}  // namespace lockstep
#pragma GCC visibility pop
