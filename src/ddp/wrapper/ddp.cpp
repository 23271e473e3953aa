#include "lockstep/ddp/ddp.h"

#include <utility>

#include "lockstep/autograd/variable.h"
#include "lockstep/core/error.h"
#include "src/autograd/engine/variable_state.h"
#include "src/ddp/checks/replicas.h"
#include "src/ddp/wrapper/agreed_options.h"
#include "src/ddp/wrapper/ddp_impl.h"
#include "src/ddp/wrapper/has_sync_batch_norm.h"
#include "src/nn/module/only_output.h"
#include "src/nn/module/trainable.h"

namespace lockstep {

namespace {

constexpr const char* kWrapper = "DistributedDataParallel";

}  // namespace

DistributedDataParallel::Impl::Impl(nn::Module& module, std::shared_ptr<ProcessGroup> group,
                                    const DistributedDataParallelOptions& options)
    : module_(module),
      module_lifetime_(module.lifetime()),
      group_(std::move(group)),
      trained_(nn::trainable_parameters(module)),
      parameters_(without(module, trained_, options.ignored_parameters)),
      buffers_(without(module, module.named_buffers(), options.ignored_parameters)),
      ignored_tensors_(tensors_named(module, options.ignored_parameters)),
      sync_buffers_(options.forward_sync_buffers),
      watch_(module, options.ignored_parameters),
      owner_(parameters_),
      missing_(*group_, kWrapper, owner_, missing_policy(options.find_unused_parameters, options.static_graph)),
      shares_(*group_, kWrapper),
      join_(*group_, shares_, kWrapper,
            {[this] { return steps_ + 1; }, [this] { follow_pass(); },
             [this](int root) { broadcast_tensors(*group_, buffers_, "buffers", root); }}),
      local_(parameters_),
      check_(*group_, parameters_, owner_, options),
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
    throw InvalidArgument("DistributedDataParallel: the module has no parameters that require a gradient");
  replace_by_roots(*group_, replicated_.parameters, "initial parameters");
  replace_by_roots(*group_, buffers_, "initial buffers");
  reducer_ = std::make_unique<Reducer>(group_, describe_gradients(module, parameters_, options.delayed_parameters),
                                       check_.watching(reducer_options(options, [this] { return factor(); })));
  check_.follow(*reducer_);
  for (const NamedTensor& parameter : module.named_parameters()) set_name(parameter.tensor, parameter.name);
  // Connects autograd and communication: every gradient is in its bucket and reports when it is final.
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    set_name(parameters_[i].tensor, parameters_[i].name);  // if it has several names, use the reducer's
    bind_grad(parameters_[i].tensor, memory_on(parameters_[i].tensor.device(), reducer_->slot(i)));
    gradients_.push_back(grad(parameters_[i].tensor));
    slots_.push_back(reducer_->slot(i).data());
    hooks_.push_back(register_last_grad_hook(parameters_[i].tensor, [this, i](const Tensor&) { gradient_ready(i); }));
  }
  in_step_.emplace(*group_, parameters_, replicated_.parameters);
  if (comm_hook_ && !comm_hook_->averages()) in_step_->let_weights_differ();
}

Tensor DistributedDataParallel::Impl::forward(const Tensor& x) {
  Tensor output = begin_forward({&x, 1})(x);
  finish_at_end_of(output);
  return output;
}

Tensors DistributedDataParallel::Impl::forward_all(const Tensors& inputs) {
  nn::Module& wrapped = begin_forward(inputs);
  Tensors outputs = wrapped(inputs);
  for (const Tensor& output : outputs) finish_at_end_of(output);
  return outputs;
}

nn::Module& DistributedDataParallel::Impl::module() const {
  if (module_lifetime_.expired())
    throw InvalidArgument(
        "DistributedDataParallel: the module with parameter '{}' was destroyed before its wrapper: declare the "
        "module first",
        parameters_.front().name);
  return module_;
}

void DistributedDataParallel::Impl::set_weight(double samples) {
  if (has_sync_batch_norm(module()))
    throw InvalidArgument(
        "DistributedDataParallel::set_weight: not with SyncBatchNorm, where a rank's loss affects the gradients of "
        "all "
        "ranks: use the sum over this rank's samples times ranks / samples of all ranks as the loss instead");
  shares_.set_weight(samples);
}

void DistributedDataParallel::Impl::rebuild(const std::vector<std::string>& names) {
  if (partner != nullptr)
    throw InvalidArgument(
        "DistributedDataParallel::rebuild_buckets: a ZeroRedundancyOptimizer or StepInBackward depends on the "
        "buckets: call rebuild_buckets() before you make it");
  rebuild(indices_of(names, parameters_));
}

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
