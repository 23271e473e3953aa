#include "lockstep/torch.h"

#include <unistd.h>

#include <utility>

#include "lockstep/comm/agreement.h"
#include "lockstep/core/error.h"
#include "src/reduce/passes/pass_refusals.h"
#include "src/torch/torch_ddp_impl.h"

namespace lockstep {

namespace {

constexpr const char* kTorchDdp = "TorchDdp";

std::vector<std::string> option_lines_of(const TorchDdpOptions& options) {
  std::string caps;
  for (const double cap : options.bucket_cap_mb) caps += fmt::format("{}{}", caps.empty() ? "" : ", ", cap);
  std::string ignored;
  for (const std::string& name : options.ignored_parameters) ignored += (ignored.empty() ? "" : ", ") + name;
  return {fmt::format("bucket_cap_mb {{{}}}", caps),
          fmt::format("forward_sync_buffers {}", options.forward_sync_buffers),
          fmt::format("find_unused_parameters {}", options.find_unused_parameters),
          fmt::format("static_graph {}", options.static_graph),
          fmt::format("ignored_parameters {{{}}}", ignored),
          options.comm_hook ? "a comm_hook " + options.comm_hook->describe() : "no comm_hook",
          fmt::format("on_nonfinite_gradient {}", name_of(options.on_nonfinite_gradient))};
}

std::vector<NamedTorchTensor> with_gradient(const std::vector<NamedTorchTensor>& parameters) {
  std::vector<NamedTorchTensor> trained;
  for (const NamedTorchTensor& parameter : parameters)
    if (parameter.second.requires_grad()) trained.push_back(parameter);
  return trained;
}

// Before the tensors are checked: a module without parameters, and one on a GPU in a group without one, are refused.
std::shared_ptr<TorchStreams> streams_for(const ProcessGroup& group, const std::vector<NamedTorchTensor>& parameters) {
  Device& device = group.local_device();
  const bool is_on_gpu = device.kind() == DeviceKind::kCuda && !parameters.empty();
  return std::make_shared<TorchStreams>(device, is_on_gpu ? parameters.front().second.device() : at::kCPU);
}

}  // namespace

TorchDdpBase::Impl::Impl(std::shared_ptr<torch::nn::Module> module, std::shared_ptr<ProcessGroup> group,
                         const TorchDdpOptions& options)
    : module_(std::move(module)),
      group_(std::move(group)),
      parameters_(torch_parameters(*module_, options.ignored_parameters)),
      buffers_(torch_buffers(*module_, options.ignored_parameters)),
      trained_(with_gradient(parameters_)),
      options_(options),
      streams_(streams_for(*group_, parameters_)),
      missing_(*group_, kTorchDdp, *this, missing_policy(options.find_unused_parameters, options.static_graph)),
      shares_(*group_, kTorchDdp),
      join_(*group_, shares_, kTorchDdp,
            {[this] { return steps_ + 1; }, [this] { follow_pass(); },
             [this](int root) { broadcast_values(*group_, *streams_, buffers_, "buffers", root); }}),
      nonfinite_(*group_, kTorchDdp, *this, options.on_nonfinite_gradient, options.comm_hook),
      process_(::getpid()) {
  std::string refusal = refused_caps(options.bucket_cap_mb);
  if (refusal.empty())
    refusal = refused_policies(options.find_unused_parameters, options.static_graph, options.comm_hook);
  if (refusal.empty()) refusal = refused_names(*module_, options.ignored_parameters);
  if (refusal.empty()) refusal = refused_tensors(parameters_, buffers_, group_->local_device());
  if (refusal.empty()) refusal = claim_.take(trained_);
  std::vector<GradientInfo> gradients;
  if (refusal.empty())
    for (const NamedTorchTensor& parameter : trained_) gradients.push_back(describe_gradient(parameter));
  if (refusal.empty() && options.comm_hook) refusal = options.comm_hook->refusal(gradients);
  refuse_on_all_ranks(*group_, kTorchDdp, refusal);
  check_same_on_all_ranks(*group_, kTorchDdp, option_lines_of(options), "have different options");
  check_same_on_all_ranks(*group_, kTorchDdp, lines_of(parameters_, buffers_), "built different models");
  watch_.emplace(parameters_, buffers_);
  broadcast_values(*group_, *streams_, parameters_, "initial parameters", 0);
  broadcast_values(*group_, *streams_, buffers_, "initial buffers", 0);

  ReducerOptions reducing{.caps = caps_in_bytes(options.bucket_cap_mb), .comm_hook = options.comm_hook};
  if (refused_scaling().empty())
    reducing.factor = [this] { return join_.noting_error([this] { return shares_.factor(); }); };
  if (nonfinite_.can_stop()) {
    reducing.before_reduction = [this](std::size_t bucket) { note_nonfinite(bucket, kOwnIsBad); };
    reducing.after_reduction = [this](std::size_t bucket) { note_nonfinite(bucket, kAverageIsBad); };
  }
  reducer_ = std::make_unique<Reducer>(group_, std::move(gradients), std::move(reducing));
  nonfinite_.check_hook();
  for (std::size_t i = 0; i < trained_.size(); ++i) slots_.push_back(slot_view(i, reducer_->slot(i)));
  streams_->torch_after_ours();  // the buckets have been filled with zeros
  touched_.resize(trained_.size());
  bad_.resize(trained_.size());
  wrapper_ = group_->count_wrapper();
}

// Shares scales gradients by kernels that have no float64.
std::string TorchDdpBase::Impl::refused_scaling() const {
  for (const auto& [name, tensor] : trained_)
    if (tensor.scalar_type() == at::kDouble)
      return fmt::format("gradients are scaled in float32, float16 and bfloat16, and '{}' is Double", name);
  return "";
}

void TorchDdpBase::Impl::check_process() const {
  if (process_ == ::getpid()) return;
  throw InvalidArgument(
      "TorchDdp: rank {}: process {} wrapped the module, and this is process {}, which was forked from it and cannot "
      "use the group: run forward and backward in the process that wrapped the module, and here only forward of the "
      "module itself",
      group_->rank(), process_, ::getpid());
}

void TorchDdpBase::Impl::check_module() {
  // The lists are read again, because a submodule may have been replaced.
  const std::string change = watch_->change(torch_parameters(*module_, options_.ignored_parameters),
                                            torch_buffers(*module_, options_.ignored_parameters));
  if (change.empty()) return;
  abort_and_throw(*group_,
                  fmt::format("TorchDdp: rank {}: the module changed after it was wrapped: {}: first build it, "
                              "freeze and convert its parameters and move it with to(), then wrap it",
                              group_->rank(), change));
}

void TorchDdpBase::Impl::set_weight(double samples) {
  if (const std::string refusal = refused_scaling(); !refusal.empty())
    throw InvalidArgument("TorchDdp::set_weight: {}", refusal);
  shares_.set_weight(samples);
}

void TorchDdpBase::Impl::join(const std::function<void()>& train, const JoinOptions& options) {
  std::string refusal = refused_join(options_.static_graph, options_.comm_hook);
  if (refusal.empty()) refusal = refused_scaling();
  if (!refusal.empty()) throw InvalidArgument("TorchDdp::join: {}", refusal);
  check_process();
  join_.run(train, options);
  if (!shares_.was_uneven()) return;
  const int root = shares_.first_with_data();
  if (!options.after_step) broadcast_values(*group_, *streams_, parameters_, "final parameters", root);
  broadcast_values(*group_, *streams_, buffers_, "final buffers", root);
}

TorchDdpBase::TorchDdpBase(std::shared_ptr<torch::nn::Module> module, std::shared_ptr<ProcessGroup> group,
                           const TorchDdpOptions& options) {
  if (module == nullptr || group == nullptr)
    throw InvalidArgument("TorchDdp: the {} is null", module == nullptr ? "module" : "process group");
  impl_ = std::make_shared<Impl>(std::move(module), std::move(group), options);
  impl_->install_hooks();
}
TorchDdpBase::TorchDdpBase(TorchDdpBase&&) noexcept = default;
TorchDdpBase::~TorchDdpBase() = default;

ProcessGroup& TorchDdpBase::group() const { return impl_->group(); }
const Reducer& TorchDdpBase::reducer() const { return impl_->reducer(); }
void TorchDdpBase::set_weight(double samples) { impl_->set_weight(samples); }
void TorchDdpBase::begin_epoch(std::int64_t steps) { impl_->begin_epoch(steps); }
void TorchDdpBase::join(const std::function<void()>& train, const JoinOptions& options) { impl_->join(train, options); }
std::int64_t TorchDdpBase::skipped_steps() const { return impl_->nonfinite().skipped_steps(); }
const std::string& TorchDdpBase::last_skipped() const { return impl_->nonfinite().last_skipped(); }
void TorchDdpBase::begin_forward() { impl_->begin_forward(); }
void TorchDdpBase::reduce_at_end_of(const torch::Tensor& output) { impl_->reduce_at_end_of(output); }

TorchDdpBase::NoSync::NoSync(TorchDdpBase& ddp) : impl_(ddp.impl_), before_(std::exchange(impl_->synchronize, false)) {}
TorchDdpBase::NoSync::~NoSync() { impl_->synchronize = before_; }

}  // namespace lockstep
