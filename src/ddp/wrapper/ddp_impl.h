// The parts of DistributedDataParallel: construction and forward (ddp.cpp), passes (ddp_passes.cpp), join()
// (ddp_join.cpp).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/ddp/ddp.h"
#include "src/ddp/checks/gradient_check.h"
#include "src/ddp/checks/module_watch.h"
#include "src/ddp/checks/pass_partner.h"
#include "src/ddp/checks/pass_watch.h"
#include "src/ddp/wrapper/ignored_tensors.h"
#include "src/ddp/wrapper/local_gradients.h"
#include "src/reduce/passes/join_loop.h"
#include "src/reduce/passes/missing_gradients.h"
#include "src/reduce/passes/shares.h"

namespace lockstep {

class DistributedDataParallel::Impl {
 public:
  Impl(nn::Module& module, std::shared_ptr<ProcessGroup> group, const DistributedDataParallelOptions& options);
  ~Impl() { *alive_ = false; }

  Tensor forward(const Tensor& x);
  Tensors forward_all(const Tensors& inputs);

  nn::Module& module() const;
  ProcessGroup& group() const { return *group_; }
  const std::vector<NamedTensor>& parameters() const { return parameters_; }
  const std::vector<std::string>& ignored_parameters() const { return ignored_; }
  Reducer& reducer() const { return *reducer_; }
  const CommHook& comm_hook() const { return comm_hook_; }
  bool finds_unused() const { return missing_.asks_each_pass(); }
  bool may_leave_gradients() const { return is_static_ || finds_unused(); }
  PassWatch& in_step() { return *in_step_; }

  // Not with SyncBatchNorm, because weights scale a rank's gradients only after they have passed through the other
  // ranks' statistics.
  void set_weight(double samples);
  bool has_weight() const { return shares_.has_weight(); }
  bool is_joining() const { return shares_.is_joining(); }
  void begin_epoch(std::int64_t steps) const { shares_.begin_epoch(steps); }
  GradientCheck& check() { return check_; }
  bool has_rebuilt() const { return has_rebuilt_; }
  bool will_rebuild() const { return !has_rebuilt_ && partner == nullptr && !missing_.asks_each_pass(); }
  void rebuild(const std::vector<std::string>& names);
  void join(const std::function<void()>& train, const JoinOptions& options);

  bool synchronize = true;  // false: gradients accumulate locally
  PassPartner* partner = nullptr;

 private:
  nn::Module& begin_forward(std::span<const Tensor> inputs);
  // A pass that reaches none of the parameters must also reduce, because the other ranks wait for it. If a pass goes
  // through several outputs, the first one calls finish_pass(), and later calls do nothing.
  void finish_at_end_of(const Tensor& output);
  // Keeps inputs for the warning at the end of the first pass; at most as many as a usual step has.
  void note_input(const Tensor& x);

  void gradient_ready(std::size_t i);
  void keep_local(std::size_t i);
  void begin_pass();
  // Called for each of our outputs that the pass went through, and for its first gradient; only the first call has an
  // effect.
  void finish_pass(bool alive);
  // The parameters' gradients move with their values, in all tensors that grad() has returned.
  void rebuild(const std::vector<std::size_t>& order);
  // Called at the end of the first reduced pass, on all ranks.
  void rebuild_as_gradients_came();
  float factor();
  void check_gradients();

  // Takes part in a backward of the other ranks.
  void follow_pass();

  nn::Module& module_;
  const std::weak_ptr<const void> module_lifetime_;
  const std::shared_ptr<ProcessGroup> group_;
  const std::vector<NamedTensor> trained_;     // including ignored ones
  const std::vector<NamedTensor> parameters_;  // by the reducer's index
  const std::vector<NamedTensor> buffers_;
  const IgnoredTensors ignored_tensors_;
  const bool sync_buffers_;
  const ModuleWatch watch_;
  ReplicatedTensors replicated_;
  WrapperClaim claim_;
  TensorGradients owner_;
  MissingGradients missing_;
  Shares shares_;
  JoinLoop join_;
  LocalGradients local_;
  GradientCheck check_;
  const bool is_static_;
  const std::vector<std::string> ignored_;
  const CommHook comm_hook_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // results may outlive the wrapper
  std::unique_ptr<Reducer> reducer_;
  std::vector<HookHandle> hooks_;
  std::vector<Tensor> gradients_;   // of the parameters, as returned by grad()
  std::vector<const void*> slots_;  // address of each gradient
  std::optional<PassWatch> in_step_;
  std::uint64_t begun_pass_ = 0, finished_pass_ = 0, local_pass_ = 0;  // numbers of backward passes
  std::uint64_t steps_ = 0;                                            // number of reduced passes
  std::deque<Tensor> inputs_;  // the last leaves that require a gradient, until the end of the first pass
  bool has_rebuilt_ = false, frozen_named_ = false, unregistered_named_ = false;
};

}  // namespace lockstep
