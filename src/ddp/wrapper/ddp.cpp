#include "lockstep/ddp/ddp.h"

#include <algorithm>
#include <deque>
#include <exception>
#include <optional>
#include <span>
#include <utility>

#include "lockstep/autograd/engine.h"
#include "lockstep/autograd/node.h"
#include "lockstep/autograd/variable.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "src/autograd/engine/variable_state.h"
#include "src/core/base/text.h"
#include "src/ddp/checks/gradient_check.h"
#include "src/ddp/checks/missing_gradients.h"
#include "src/ddp/checks/mistakes.h"
#include "src/ddp/checks/module_watch.h"
#include "src/ddp/checks/pass_partner.h"
#include "src/ddp/checks/pass_watch.h"
#include "src/ddp/checks/replicas.h"
#include "src/ddp/optimizers/shares.h"
#include "src/ddp/wrapper/agreed_options.h"
#include "src/ddp/wrapper/each_ranks_own.h"
#include "src/ddp/wrapper/has_sync_batch_norm.h"
#include "src/ddp/wrapper/local_gradients.h"
#include "src/nn/module/only_output.h"
#include "src/nn/module/trainable.h"

namespace lockstep {

namespace {

constexpr std::size_t kMostInputs = 64;

}  // namespace

class DistributedDataParallel::Impl {
 public:
  Impl(nn::Module& module, std::shared_ptr<ProcessGroup> group, const DistributedDataParallelOptions& options)
      : module_(module),
        module_lifetime_(module.lifetime()),
        group_(std::move(group)),
        trained_(nn::trainable_parameters(module)),
        parameters_(without(module, trained_, options.ignored_parameters)),
        buffers_(without(module, module.named_buffers(), options.ignored_parameters)),
        own_(tensors_named(module, options.ignored_parameters)),
        sync_buffers_(options.forward_sync_buffers),
        watch_(module, options.ignored_parameters),
        missing_(*group_, parameters_, options),
        shares_(*group_),
        local_(parameters_),
        check_(*group_, parameters_, options),
        is_static_(options.static_graph),
        ignored_(options.ignored_parameters),
        comm_hook_(options.comm_hook) {
    replicated_ = {group_.get(), without(module, module.named_parameters(), options.ignored_parameters),
                   [this] { return in_step_->weights_may_differ(); }, [this] { return shares_.is_joining(); }};
    std::string refusal = claim_.take(parameters_, replicated_);
    if (refusal.empty() && options.comm_hook)
      refusal = options.comm_hook->refusal(describe_gradients(module, parameters_, options.delayed_parameters));
    check_options(*group_, module, options, refusal);
    check_same_model(*group_, module, "DistributedDataParallel", options.ignored_parameters);
    if (parameters_.empty())
      throw InvalidArgument("DistributedDataParallel: the module has no parameter that requires a gradient");
    replace_by_roots(*group_, replicated_.parameters, "initial parameters");
    replace_by_roots(*group_, buffers_, "initial buffers");
    reducer_ = std::make_unique<Reducer>(group_, describe_gradients(module, parameters_, options.delayed_parameters),
                                         check_.watching(reducer_options(options, [this] { return factor(); })));
    check_.follow(*reducer_);
    for (const NamedTensor& parameter : module.named_parameters()) set_name(parameter.tensor, parameter.name);
    // The join of autograd and communication: every gradient lies in its bucket, and says when it is final.
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      set_name(parameters_[i].tensor, parameters_[i].name);  // of several names, the reducer's
      bind_grad(parameters_[i].tensor, memory_on(parameters_[i].tensor.device(), reducer_->slot(i)));
      gradients_.push_back(grad(parameters_[i].tensor));
      slots_.push_back(reducer_->slot(i).data());
      hooks_.push_back(register_last_grad_hook(parameters_[i].tensor, [this, i](const Tensor&) { gradient_ready(i); }));
    }
    in_step_.emplace(*group_, parameters_, replicated_.parameters);
    if (comm_hook_ && !comm_hook_->averages()) in_step_->let_weights_differ();
  }

  Tensor forward(const Tensor& x) {
    Tensor output = begin_forward({&x, 1})(x);
    finish_at_end_of(output);
    return output;
  }

  Tensors forward_all(const Tensors& inputs) {
    nn::Module& wrapped = begin_forward(inputs);
    Tensors outputs = wrapped(inputs);
    for (const Tensor& output : outputs) finish_at_end_of(output);
    return outputs;
  }

  nn::Module& module() const {
    if (module_lifetime_.expired())
      throw InvalidArgument(
          "DistributedDataParallel: the module with parameter '{}' was destroyed before its wrapper: declare the "
          "module first",
          parameters_.front().name);
    return module_;
  }
  ProcessGroup& group() const { return *group_; }
  const std::vector<NamedTensor>& parameters() const { return parameters_; }
  const std::vector<std::string>& ignored_parameters() const { return ignored_; }
  Reducer& reducer() const { return *reducer_; }
  const CommHook& comm_hook() const { return comm_hook_; }
  bool finds_unused() const { return missing_.asks_each_pass(); }
  bool may_leave_gradients() const { return is_static_ || finds_unused(); }
  PassWatch& in_step() { return *in_step_; }

  // Weights scale a rank's gradients when they are summed, after they have passed through the other ranks' statistics.
  void set_weight(double samples) {
    if (has_sync_batch_norm(module()))
      throw InvalidArgument(
          "DistributedDataParallel::set_weight: not with SyncBatchNorm, by which a rank's loss has a part in the "
          "gradients of all ranks: "
          "make the loss the sum over this rank's samples, times ranks / samples of all ranks, instead");
    shares_.set_weight(samples);
  }
  bool has_weight() const { return shares_.has_weight(); }
  bool is_joining() const { return shares_.is_joining(); }
  void begin_epoch(std::int64_t steps) const { shares_.begin_epoch(steps); }
  GradientCheck& check() { return check_; }
  bool has_rebuilt() const { return has_rebuilt_; }
  bool will_rebuild() const { return !has_rebuilt_ && partner == nullptr && !missing_.asks_each_pass(); }

  void rebuild(const std::vector<std::string>& names) {
    if (partner != nullptr)
      throw InvalidArgument(
          "DistributedDataParallel::rebuild_buckets: a ZeroRedundancyOptimizer or StepInBackward goes by these "
          "buckets: call it first");
    rebuild(indices_of(names, parameters_));
  }

  void join(const std::function<void()>& train, const JoinOptions& options) {
    std::string refusal = refusal_of_join(module(), is_static_, comm_hook_);
    if (refusal.empty() && partner != nullptr) refusal = partner->refusal_of_join(options);
    if (!refusal.empty()) throw InvalidArgument("DistributedDataParallel::join: {}", refusal);
    shares_.begin_join(options);
    pass_error_ = nullptr;
    struct Joining {
      Impl& impl;
      ~Joining() {
        impl.shares_.end_join();
        impl.in_step_->restart();
      }
    } const joining{*this};
    try {
      train();
      follow_others(options.after_step);
    } catch (...) {
      end_join_by(std::current_exception());
      throw;
    }
    if (!shares_.was_uneven()) return;
    if (!options.after_step) replace_by_roots(*group_, parameters_, "final parameters", shares_.first_with_data());
    replace_by_roots(*group_, buffers_, "final buffers", shares_.first_with_data());
  }

  bool synchronize = true;  // off: gradients gather locally
  PassPartner* partner = nullptr;

  ~Impl() { *alive_ = false; }

 private:
  nn::Module& begin_forward(std::span<const Tensor> inputs) {
    pass_error_ = nullptr;
    nn::Module& wrapped = module();
    std::string change = watch_.change(wrapped);
    if (change.empty()) change = moved_gradient(parameters_, slots_);
    if (change.empty() && group_->world_size() > 1 && !NoGrad::active()) change = watch_.unfrozen();
    if (!change.empty())
      abort_and_throw(
          *group_,
          fmt::format(
              "DistributedDataParallel: rank {}: the module changed after it was wrapped: {}: build it, freeze and "
              "unfreeze its parameters, and move it with .to(device), first, then wrap it",
              group_->rank(), change));
    frozen_named_ = frozen_named_ || warn_of_frozen(group_->rank(), parameters_);
    if (sync_buffers_ && wrapped.is_training() && synchronize && !buffers_.empty()) {
      if (shares_.is_joining()) shares_.announce(Shares::Act::kBuffers, steps_ + 1);
      broadcast_tensors(*group_, buffers_, "buffers", shares_.is_joining() ? shares_.first_with_data() : 0);
    }
    for (const Tensor& input : inputs) note_input(input);
    return wrapped;
  }

  // A pass that reaches none of the parameters must reduce as well: the other ranks wait for it. Of several outputs
  // that a pass goes through, the first calls finish_pass(), and the others' calls do nothing.
  void finish_at_end_of(const Tensor& output) {
    register_backward_end_hook(output, [this, alive = alive_] { finish_pass(*alive); });
  }

  // For the warning at the end of the first pass, of which no more is asked than a user's usual step.
  void note_input(const Tensor& x) {
    if (unregistered_named_ || !synchronize || NoGrad::active() || !requires_grad(x) || node_of(x)) return;
    if (inputs_.size() == kMostInputs) inputs_.pop_front();
    inputs_.push_back(x);
  }

  void gradient_ready(std::size_t i) {
    if (!synchronize) return keep_local(i);
    if (std::exchange(begun_pass_, backward_pass()) != backward_pass()) {
      begin_pass();
      queue_callback([this, alive = alive_] { finish_pass(*alive); });
    }
    reducer_->mark_ready(i);
  }

  void keep_local(std::size_t i) {
    if (std::exchange(local_pass_, backward_pass()) != backward_pass()) in_step_->note_local_pass();
    if (group_->world_size() > 1 && !in_step_->weights_may_differ()) local_.keep(i);
  }

  void begin_pass() {
    pass_error_ = nullptr;
    if (reducer_->in_pass()) reducer_->abandon_pass();  // the pass before ended by an exception
    shares_.begin_pass(steps_ + 1);
    if (partner != nullptr) partner->begin_pass(steps_ + 1);
    shares_.is_joining() ? in_step_->begin_pass_in_join(steps_ + 1) : in_step_->begin_pass(steps_ + 1);
  }

  // The parameters' gradients take their values along, in all tensors that grad() ever returned.
  void rebuild(const std::vector<std::size_t>& order) {
    reducer_->rebuild(order, [this](std::size_t i, const Buffer& slot) {
      const bool is_there = gradients_[i].buffer().data() == std::exchange(slots_[i], slot.data());
      if (is_there)
        gradients_[i].rebind(memory_on(gradients_[i].device(), slot));  // else the next forward says that it was moved
    });
    check_.follow(*reducer_);
    has_rebuilt_ = true;
  }

  // At the end of the first pass that was reduced, on all ranks.
  void rebuild_as_gradients_came() {
    if (!will_rebuild()) return;
    const std::span<const std::size_t> arrivals = reducer_->arrival_order();
    std::vector<std::int64_t> order(arrivals.begin(), arrivals.end());
    if (group_->world_size() > 1)
      group_->broadcast(std::span(order), shares_.is_joining() ? shares_.first_with_data() : 0,
                        {.purpose = {"bucket order"}});
    rebuild(std::vector<std::size_t>(order.begin(), order.end()));
  }

  // On a rank that has no data left, until no rank has any. An error to which all ranks come in a pass does not end
  // join() while those with data may catch it and go on; they say so when it does.
  void follow_others(const std::function<void()>& after_step) {
    for (;;) {
      const Shares::Act act = shares_.announce(Shares::Act::kNothing, steps_ + 1);
      if (act == Shares::Act::kNothing) return;
      if (act == Shares::Act::kThrow) rethrow_pass_error();
      if (act == Shares::Act::kBuffers) {
        broadcast_tensors(*group_, buffers_, "buffers", shares_.first_with_data());
        continue;
      }
      try {
        follow_pass();
      } catch (...) {
        if (!pass_error_) throw;
        continue;
      }
      if (after_step) after_step();
    }
  }

  [[noreturn]] void rethrow_pass_error() const {
    LOCKSTEP_CHECK(pass_error_, "join: rank {} throws an error to which this rank has not come",
                   shares_.first_with_data());
    std::rethrow_exception(pass_error_);
  }

  // In a handler of what leaves `train` or after_step. If it is the error to which all ranks have come, the group goes
  // on, and those that follow this rank are told; another one, thrown after that was caught, is this rank's own.
  void end_join_by(const std::exception_ptr& error) {
    if (shares_.has_ended_join() || group_->world_size() == 1) return;
    if (!pass_error_ || error != pass_error_) return group_->abort(exception_text(error));
    try {
      shares_.announce(Shares::Act::kThrow, steps_ + 1);
    } catch (const std::exception& other) {  // the others go on: they throw it as well
      log::debug("DistributedDataParallel::join: {}", other.what());
    }
  }

  // `step` throws on all ranks, each by itself, or on none, unless the group is over.
  template <typename Step>
  auto noting_error(Step&& step) {
    try {
      return step();
    } catch (const Error&) {  // memory that is exhausted, say, is this rank's alone
      pass_error_ = std::current_exception();
      throw;
    }
  }
  float factor() {
    return noting_error([this] { return shares_.factor(); });
  }
  void check_gradients() {
    noting_error([this] { check_.finish(steps_); });
  }

  // A backward of the others.
  void follow_pass() {
    pass_error_ = nullptr;
    if (reducer_->in_pass()) reducer_->abandon_pass();  // of the pass before, which an error ended
    for (const NamedTensor& parameter : parameters_)
      if (requires_grad(parameter.tensor)) clear_grad(parameter.tensor);
    if (partner != nullptr) partner->begin_followed_pass(steps_ + 1);
    in_step_->begin_pass_in_join(steps_ + 1);
    missing_.follow(reducer_->finish());
    reducer_->undo(missing_.unused());
    ++steps_;
    check_gradients();
    if (partner != nullptr) partner->end_pass();
    rebuild_as_gradients_came();
  }

  // Called for everything of ours that the pass went through, and for its first gradient: the first call counts.
  void finish_pass(bool alive) {
    if (!alive || !synchronize || std::exchange(finished_pass_, backward_pass()) == backward_pass()) return;
    if (begun_pass_ != finished_pass_) begin_pass();
    // Not reached now, but by a pass under no_sync() before: that gradient waits to be averaged.
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      if (!reducer_->is_ready(i) && wants_and_has_grad(parameters_[i].tensor)) reducer_->mark_ready(i);
    const std::vector<std::size_t> missing = reducer_->finish();
    local_.release();
    missing_.settle(missing, ++steps_);
    reducer_->undo(missing_.unused());
    check_gradients();
    if (partner != nullptr) partner->end_pass();
    rebuild_as_gradients_came();
    if (!std::exchange(unregistered_named_, true))
      warn_of_unregistered_leaves(group_->rank(), trained_, std::exchange(inputs_, {}));
  }

  nn::Module& module_;
  const std::weak_ptr<const void> module_lifetime_;
  const std::shared_ptr<ProcessGroup> group_;
  const std::vector<NamedTensor> trained_;     // the ignored ones, too
  const std::vector<NamedTensor> parameters_;  // by the reducer's index
  const std::vector<NamedTensor> buffers_;
  const EachRanksOwn own_;
  const bool sync_buffers_;
  const ModuleWatch watch_;
  ReplicatedTensors replicated_;
  WrapperClaim claim_;
  MissingGradients missing_;
  Shares shares_;
  LocalGradients local_;
  GradientCheck check_;
  const bool is_static_;
  const std::vector<std::string> ignored_;
  const CommHook comm_hook_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // results may outlive the wrapper
  std::unique_ptr<Reducer> reducer_;
  std::vector<HookHandle> hooks_;
  std::vector<Tensor> gradients_;   // of the parameters, as grad() has them
  std::vector<const void*> slots_;  // where each gradient lies
  std::optional<PassWatch> in_step_;
  std::uint64_t begun_pass_ = 0, finished_pass_ = 0, local_pass_ = 0;  // numbers of backward passes
  std::uint64_t steps_ = 0;                                            // passes that were reduced
  std::deque<Tensor> inputs_;      // leaves that want a gradient, up to the first pass; the last ones
  std::exception_ptr pass_error_;  // of the last pass, where all ranks came to it
  bool has_rebuilt_ = false, frozen_named_ = false, unregistered_named_ = false;
};

DistributedDataParallel::DistributedDataParallel(nn::Module& module, std::shared_ptr<ProcessGroup> group,
                                                 const DistributedDataParallelOptions& options)
    : impl_(std::make_unique<Impl>(module, std::move(group), options)) {}
DistributedDataParallel::~DistributedDataParallel() = default;

Tensor DistributedDataParallel::forward(const Tensor& x) { return impl_->forward(x); }
Tensors DistributedDataParallel::forward_all(const Tensors& inputs) { return impl_->forward_all(inputs); }
Tensor DistributedDataParallel::forward_for_one(const Tensors& inputs) {
  return nn::only_output(module(), forward_all(inputs));
}
nn::Module& DistributedDataParallel::module() const { return impl_->module(); }
ProcessGroup& DistributedDataParallel::group() const { return impl_->group(); }
std::vector<NamedTensor> DistributedDataParallel::parameters() const { return impl_->parameters(); }
const std::vector<std::string>& DistributedDataParallel::ignored_parameters() const {
  return impl_->ignored_parameters();
}
const Reducer& DistributedDataParallel::reducer() const { return impl_->reducer(); }
const CommHook& DistributedDataParallel::comm_hook() const { return impl_->comm_hook(); }
bool DistributedDataParallel::synchronizes() const { return impl_->synchronize; }
void DistributedDataParallel::set_weight(double samples) { impl_->set_weight(samples); }
bool DistributedDataParallel::has_weight() const { return impl_->has_weight(); }
void DistributedDataParallel::begin_epoch(std::int64_t steps) { impl_->begin_epoch(steps); }
void DistributedDataParallel::join(const std::function<void()>& train, const JoinOptions& options) {
  impl_->join(train, options);
}
bool DistributedDataParallel::is_joining() const { return impl_->is_joining(); }
bool DistributedDataParallel::finds_unused_parameters() const { return impl_->finds_unused(); }
void DistributedDataParallel::rebuild_buckets(const std::vector<std::string>& order) { impl_->rebuild(order); }
bool DistributedDataParallel::has_rebuilt_buckets() const { return impl_->has_rebuilt(); }
bool DistributedDataParallel::rebuilds_buckets() const { return impl_->will_rebuild(); }
float DistributedDataParallel::last_grad_norm() const { return impl_->check().last_norm(); }
OnNonfiniteGradient DistributedDataParallel::on_nonfinite_gradient() const { return impl_->check().on_nonfinite(); }
std::int64_t DistributedDataParallel::skipped_steps() const { return impl_->check().skipped_steps(); }
const std::string& DistributedDataParallel::last_skipped() const { return impl_->check().last_skipped(); }

Reducer& PassAccess::reducer(DistributedDataParallel& ddp) { return ddp.impl_->reducer(); }
PassPartner* PassAccess::partner(const DistributedDataParallel& ddp) { return ddp.impl_->partner; }
void PassAccess::set_partner(DistributedDataParallel& ddp, PassPartner* partner) { ddp.impl_->partner = partner; }
GradientCheck& PassAccess::check(DistributedDataParallel& ddp) { return ddp.impl_->check(); }
PassWatch& PassAccess::in_step(DistributedDataParallel& ddp) { return ddp.impl_->in_step(); }
bool PassAccess::may_leave_gradients(const DistributedDataParallel& ddp) { return ddp.impl_->may_leave_gradients(); }

DistributedDataParallel::NoSync::NoSync(DistributedDataParallel& ddp)
    : ddp_(ddp), before_(std::exchange(ddp.impl_->synchronize, false)) {}
DistributedDataParallel::NoSync::~NoSync() { ddp_.impl_->synchronize = before_; }

}  // namespace lockstep
