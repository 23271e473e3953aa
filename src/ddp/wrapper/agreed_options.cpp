#include "src/ddp/wrapper/agreed_options.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <unordered_map>

#include "lockstep/comm/agreement.h"
#include "lockstep/core/error.h"
#include "src/core/base/message_text.h"
#include "src/ddp/checks/replicas.h"
#include "src/ddp/wrapper/has_sync_batch_norm.h"
#include "src/nn/module/trainable.h"
#include "src/reduce/passes/nonfinite_steps.h"
#include "src/reduce/passes/pass_refusals.h"

namespace lockstep {

namespace {

bool has_name(std::span<const NamedTensor> tensors, const std::string& name) {
  return std::any_of(tensors.begin(), tensors.end(), [&](const NamedTensor& tensor) { return tensor.name == name; });
}

// Returns why a pair of options cannot be combined, or "". docs/ddp.md lists the pairs.
std::string refused_pair(const DistributedDataParallelOptions& options) {
  if (std::string policies = refused_policies(options.find_unused_parameters, options.static_graph, options.comm_hook);
      !policies.empty())
    return policies;
  if (options.loss_scaler != nullptr && options.on_nonfinite_gradient == OnNonfiniteGradient::kThrow)
    return "on_nonfinite_gradient kThrow ends a training whose scaled gradients overflow, as they do while a "
           "loss_scaler adjusts its scale: use kSkipStep, which lowers the scale";
  return "";
}

bool looks_at_gradients(const DistributedDataParallelOptions& options) {
  return options.max_grad_norm > 0 || options.on_nonfinite_gradient != OnNonfiniteGradient::kIgnore;
}

// Returns "", or why the norm over these parameters cannot be computed: on GPUs one device holds the sums.
std::string refused_parameters(const std::vector<NamedTensor>& trained) {
  for (const auto& [name, tensor] : trained) {
    if (tensor.dtype() != DType::kFloat32)
      return fmt::format("max_grad_norm and on_nonfinite_gradient read gradients of float32: '{}' is {}", name,
                         name_of(tensor.dtype()));
    const Device &device = tensor.device(), &first = trained.front().tensor.device();
    if (&device != &first && (device.kind() != DeviceKind::kCpu || first.kind() != DeviceKind::kCpu))
      return fmt::format(
          "max_grad_norm and on_nonfinite_gradient need all gradients on one device: '{}' is on {}, but '{}' is on {}",
          name, device.name(), trained.front().name, first.name());
  }
  return "";
}

// Returns "", or why the options are invalid.
std::string refusal_of(const nn::Module& module, const DistributedDataParallelOptions& options) {
  if (std::string caps = refused_caps(options.bucket_cap_mb); !caps.empty()) return caps;
  if (std::string pair = refused_pair(options); !pair.empty()) return pair;
  if (!(options.max_grad_norm >= 0))
    return fmt::format("max_grad_norm is {}, expected a norm above 0, or 0 for no clipping", options.max_grad_norm);
  if (options.loss_scaler != nullptr && !looks_at_gradients(options))
    return "loss_scaler is used only by max_grad_norm and on_nonfinite_gradient: set one of them, or give "
           "the scaler only to the optimizer";
  const std::vector<NamedTensor> parameters = module.named_parameters(), buffers = module.named_buffers();
  for (const std::string& name : options.ignored_parameters)
    if (!has_name(parameters, name) && !has_name(buffers, name))
      return fmt::format(
          "ignored_parameters has '{}', which is not a parameter or buffer of the module: see named_parameters()",
          name);
  const std::vector<Tensor> ignored = tensors_named(module, options.ignored_parameters);
  for (const std::string& name : options.delayed_parameters) {
    const auto found =
        std::find_if(parameters.begin(), parameters.end(), [&](const NamedTensor& p) { return p.name == name; });
    if (found == parameters.end() || !requires_grad(found->tensor))
      return fmt::format(
          "delayed_parameters has '{}', which is not a parameter that requires a gradient: see named_parameters()",
          name);
    if (is_among(found->tensor, ignored))
      return fmt::format(
          "'{}' is in both ignored_parameters and delayed_parameters, but ignored parameters are not reduced: remove "
          "one",
          name);
  }
  const std::vector<NamedTensor> trained = nn::trainable_parameters(module);
  if (!trained.empty() && without(module, trained, options.ignored_parameters).empty())
    return "ignored_parameters has all parameters that require a gradient, so none are left to reduce";
  return looks_at_gradients(options) ? refused_parameters(without(module, trained, options.ignored_parameters)) : "";
}

std::vector<std::string> option_lines(const DistributedDataParallelOptions& options) {
  std::vector<std::string> caps;
  for (const double cap : options.bucket_cap_mb) caps.push_back(fmt::format("{}", cap));
  return {fmt::format("bucket_cap_mb {{{}}}", joined(caps, ", ")),
          fmt::format("forward_sync_buffers {}", options.forward_sync_buffers),
          fmt::format("find_unused_parameters {}", options.find_unused_parameters),
          fmt::format("static_graph {}", options.static_graph),
          fmt::format("ignored_parameters {{{}}}", joined(options.ignored_parameters, ", ")),
          fmt::format("delayed_parameters {{{}}}", joined(options.delayed_parameters, ", ")),
          options.comm_hook ? "a comm_hook " + options.comm_hook->describe() : "no comm_hook",
          fmt::format("max_grad_norm {}", options.max_grad_norm),
          fmt::format("on_nonfinite_gradient {}", name_of(options.on_nonfinite_gradient)),
          options.loss_scaler != nullptr ? "a loss_scaler" : "no loss_scaler"};
}

}  // namespace

void check_options(ProcessGroup& group, const nn::Module& module, const DistributedDataParallelOptions& options,
                   const std::string& refusal) {
  refuse_on_all_ranks(group, "DistributedDataParallel", refusal.empty() ? refusal_of(module, options) : refusal);
  check_same_on_all_ranks(group, "DistributedDataParallel", option_lines(options), "have different options");
}

std::vector<Tensor> tensors_named(const nn::Module& module, const std::vector<std::string>& names) {
  std::vector<Tensor> named;
  if (names.empty()) return named;
  for (const auto& list : {module.named_parameters(), module.named_buffers()})
    for (const auto& [name, tensor] : list)
      if (std::find(names.begin(), names.end(), name) != names.end()) named.push_back(tensor);
  return named;
}

bool is_among(const Tensor& tensor, const std::vector<Tensor>& tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [&](const Tensor& other) { return other.is_same(tensor); });
}

std::string refusal_of_join(const nn::Module& module, bool is_static, const CommHook& hook) {
  if (std::string refusal = refused_join(is_static, hook); !refusal.empty()) return refusal;
  if (has_sync_batch_norm(module))
    return "not with SyncBatchNorm, whose forward needs the samples of all ranks: give the ranks equal numbers of "
           "batches (begin_epoch() compares them), or keep the layers as BatchNorm";
  return "";
}

std::vector<NamedTensor> without(const nn::Module& module, const std::vector<NamedTensor>& tensors,
                                 const std::vector<std::string>& ignored) {
  const std::vector<Tensor> left_out = tensors_named(module, ignored);
  std::vector<NamedTensor> others;
  for (const NamedTensor& entry : tensors)
    if (!is_among(entry.tensor, left_out)) others.push_back(entry);
  return others;
}

std::vector<GradientInfo> describe_gradients(const nn::Module& module, const std::vector<NamedTensor>& parameters,
                                             const std::vector<std::string>& delayed_names) {
  const std::vector<Tensor> delayed = tensors_named(module, delayed_names);
  std::vector<GradientInfo> gradients;
  for (const auto& [name, tensor] : parameters)
    gradients.push_back({name, static_cast<std::size_t>(tensor.count()), tensor.dtype(), tensor.device().kind(),
                         is_among(tensor, delayed), tensor.shape()});
  return gradients;
}

std::vector<std::size_t> indices_of(const std::vector<std::string>& names, const std::vector<NamedTensor>& parameters) {
  std::unordered_map<std::string_view, std::size_t> by_name;
  for (std::size_t i = 0; i < parameters.size(); ++i) by_name.emplace(parameters[i].name, i);
  std::vector<std::size_t> order;
  for (const std::string& name : names) {
    const auto found = by_name.find(name);
    if (found == by_name.end())
      throw InvalidArgument("DistributedDataParallel::rebuild_buckets: '{}' is not one of the {} reduced parameters",
                            name, parameters.size());
    order.push_back(found->second);
  }
  return order;
}

ReducerOptions reducer_options(const DistributedDataParallelOptions& options, std::function<float()> factor) {
  return {caps_in_bytes(options.bucket_cap_mb), options.comm_hook, std::move(factor)};
}

}  // namespace lockstep
