// The parts of TorchDdpBase: construction, forward and join() (torch_ddp.cpp), passes (torch_passes.cpp).
//
// One backward of a model goes like this:
//   AccumulateGrad of a parameter has run   -> gradient_ready(i): the gradient goes into its slot, unless it is there
//   the first of them, or a hook on the     -> open_pass(): the ranks' positions are compared, and autograd's engine
//   output of forward()                        gets a callback for its end
//   a bucket is full                        -> the reducer starts its reduction, while autograd goes on
//   the engine's callback                   -> finish_pass(): waits for the reductions, settles missing gradients
// On a GPU the hooks run on autograd's thread for that device, and streams wait instead of the host: the reducer's for
// torch's before a gradient is marked, torch's for the reducer's at the end.
// An exception in a hook leaves backward() as it is.
#pragma once

#include <sys/types.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/torch.h"
#include "src/reduce/passes/gradient_owner.h"
#include "src/reduce/passes/join_loop.h"
#include "src/reduce/passes/missing_gradients.h"
#include "src/reduce/passes/nonfinite_steps.h"
#include "src/reduce/passes/shares.h"
#include "src/torch/torch_parameters.h"
#include "src/torch/torch_streams.h"

namespace lockstep {

class TorchDdpBase::Impl : public GradientOwner, public std::enable_shared_from_this<Impl> {
 public:
  Impl(std::shared_ptr<torch::nn::Module> module, std::shared_ptr<ProcessGroup> group, const TorchDdpOptions& options);
  ~Impl() override;
  void install_hooks();  // call it once, when a shared_ptr owns this object

  void begin_forward();
  void reduce_at_end_of(const torch::Tensor& output);
  void set_weight(double samples);
  void begin_epoch(std::int64_t steps) const { shares_.begin_epoch(steps); }
  void join(const std::function<void()>& train, const JoinOptions& options);

  ProcessGroup& group() const { return *group_; }
  const Reducer& reducer() const { return *reducer_; }
  const NonfiniteSteps& nonfinite() const { return nonfinite_; }

  std::size_t count() const override { return trained_.size(); }
  const std::string& name(std::size_t parameter) const override { return trained_[parameter].first; }
  bool requires_grad(std::size_t parameter) const override { return trained_[parameter].second.requires_grad(); }
  void take_average(std::size_t parameter) override { grad_of(parameter) = slots_[parameter]; }

  bool synchronize = true;  // false: gradients accumulate locally

 private:
  at::Tensor& grad_of(std::size_t parameter) const { return trained_[parameter].second.mutable_grad(); }
  at::Tensor slot_view(std::size_t parameter, const Buffer& slot) const;
  bool is_in_slot(std::size_t parameter) const;
  void put_into_slot(std::size_t parameter);

  void check_process() const;  // a forked child has the group's connections and none of its threads
  void check_module();
  void refuse_capture();            // of a CUDA graph
  bool needs_accumulation() const;  // false: torch::autograd::grad() is running
  void gradient_ready(std::size_t parameter);
  void hand_over(std::size_t parameter);  // its gradient, to the reducer
  class PassEnd;
  void open_pass();
  void drop_pass(std::uint64_t opened);  // that an exception ended, if it is still the open one
  bool has_values(std::size_t parameter) const;
  void finish_pass();
  void follow_pass();
  void compare_positions();
  void end_pass();
  void rebuild_as_gradients_came();
  std::string refused_scaling() const;

  // These look at the values in a bucket, this rank's or the averages.
  bool is_finite(std::size_t bucket) const;
  void note_nonfinite(std::size_t bucket, unsigned bit);
  void check_gradients();

  const std::shared_ptr<torch::nn::Module> module_;
  const std::shared_ptr<ProcessGroup> group_;
  std::vector<NamedTorchTensor> parameters_, buffers_;
  std::vector<NamedTorchTensor> trained_;  // that require a gradient, by the reducer's index
  const TorchDdpOptions options_;
  const std::shared_ptr<TorchStreams> streams_;  // views of slots have it, too
  TorchClaim claim_;
  std::optional<TorchModuleWatch> watch_;
  MissingGradients missing_;
  Shares shares_;
  JoinLoop join_;
  NonfiniteSteps nonfinite_;
  std::unique_ptr<Reducer> reducer_;
  std::vector<at::Tensor> slots_;  // a view of each gradient's slot
  std::vector<bool> touched_;      // by a backward since the last reduced pass
  std::vector<std::uint8_t> bad_;  // bits of nonfinite_steps.h, of the present pass
  std::vector<std::pair<c10::intrusive_ptr<torch::autograd::Node>, std::uintptr_t>> hooks_;  // AccumulateGrad, key
  const pid_t process_;
  std::uint32_t wrapper_ = 0;
  std::uint64_t steps_ = 0;   // number of reduced passes
  bool is_open_ = false;      // a pass has begun, and backward runs
  std::uint64_t opened_ = 0;  // number of passes that began
  bool has_rebuilt_ = false;
};

}  // namespace lockstep
