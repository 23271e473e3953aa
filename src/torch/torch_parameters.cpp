#include "src/torch/torch_parameters.h"

#include <ATen/MemoryOverlap.h>

#include <algorithm>
#include <mutex>
#include <unordered_set>

#include "lockstep/core/error.h"

namespace lockstep {

namespace {

std::vector<NamedTorchTensor> each_once(const torch::OrderedDict<std::string, at::Tensor>& tensors,
                                        const TorchNames& ignored) {
  std::vector<NamedTorchTensor> once;
  std::unordered_set<const void*> seen;
  for (const std::string& name : ignored)
    if (const at::Tensor* tensor = tensors.find(name)) seen.insert(tensor->unsafeGetTensorImpl());
  for (const auto& entry : tensors)
    if (entry.value().defined() && seen.insert(entry.value().unsafeGetTensorImpl()).second)
      once.emplace_back(entry.key(), entry.value());
  return once;
}

std::string extents_text(at::IntArrayRef extents) {
  std::string text;
  for (const std::int64_t extent : extents) text += fmt::format("{}{}", text.empty() ? "" : ", ", extent);
  return "(" + text + ")";
}

std::string type_text(at::ScalarType type) { return c10::toString(type); }

// The bytes of a strided tensor in one piece, in any order of its dimensions.
bool is_one_piece(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.is_non_overlapping_and_dense();
}

// Values cannot be written to elements that share memory.
std::string refused_overlap(const char* what, const NamedTorchTensor& tensor) {
  if (at::has_internal_overlap(tensor.second) != at::MemOverlap::Yes) return "";
  return fmt::format("{} '{}' has sizes {} and strides {}, so that elements overlap: make it of .contiguous()", what,
                     tensor.first, extents_text(tensor.second.sizes()), extents_text(tensor.second.strides()));
}

std::string refused_parameter(const NamedTorchTensor& parameter) {
  const auto& [name, tensor] = parameter;
  if (tensor.layout() != at::kStrided)
    return fmt::format("parameter '{}' is sparse: make it dense with to_dense()", name);
  if (!tensor.is_leaf())
    return fmt::format(
        "parameter '{}' is computed from other tensors, so that it has no gradient of its own: register a leaf "
        "(detach().requires_grad_()), and compute from it in forward()",
        name);
  if (!tensor.requires_grad()) return refused_overlap("parameter", parameter);
  if (tensor.is_complex())
    return fmt::format(
        "parameter '{}' is complex ({}): keep its real and imaginary parts in a real parameter, and make the complex "
        "tensor of it in forward() (torch::view_as_complex)",
        name, type_text(tensor.scalar_type()));
  if (!dtype_of(tensor.scalar_type()) || !tensor.is_floating_point())
    return fmt::format("parameter '{}' is {}, expected Float, Double, Half or BFloat16", name,
                       type_text(tensor.scalar_type()));
  if (!is_one_piece(tensor))
    return fmt::format(
        "parameter '{}' has sizes {} and strides {}, so that elements overlap or have gaps between them: make it of "
        ".contiguous()",
        name, extents_text(tensor.sizes()), extents_text(tensor.strides()));
  return "";
}

// The module's tensors are on one device, the CPU or the group's GPU.
std::string refused_places(const std::vector<NamedTorchTensor>& parameters,
                           const std::vector<NamedTorchTensor>& buffers, const Device& device) {
  if (parameters.empty()) return "";
  const auto& [first, example] = parameters.front();
  const at::Device place = example.device();
  for (const auto* list : {&parameters, &buffers})
    for (const auto& [name, tensor] : *list)
      if (tensor.device() != place)
        return fmt::format("{} '{}' is on {}, but '{}' is on {}: move the whole module to one device",
                           list == &parameters ? "parameter" : "buffer", name, tensor.device().str(), first,
                           place.str());
  if (place.is_cpu()) return "";
  if (!place.is_cuda())
    return fmt::format("parameter '{}' is on {}, expected the CPU or a CUDA device: move the module there", first,
                       place.str());
  if (device.kind() != DeviceKind::kCuda)
    return fmt::format(
        "parameter '{}' is on {}, but the group's device is the CPU, so the group has no NCCL: move the module to the "
        "CPU, or make the group with the GPU (LOCKSTEP_DEVICE=cuda, a build with CUDA)",
        first, place.str());
  if (place.index() != device.index())
    return fmt::format(
        "parameter '{}' is on {}, but the group's device is {}: move the module to torch::Device(torch::kCUDA, "
        "group->local_device().index())",
        first, place.str(), device.name());
  return "";
}

struct ClaimedTensors {
  std::mutex mutex;
  std::unordered_set<const void*> all;
};

ClaimedTensors& claimed_tensors() {
  static ClaimedTensors* const kAll = new ClaimedTensors;  // never destroyed, because a wrapper may be static, too
  return *kAll;
}

}  // namespace

std::string described(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided) return type_text(tensor.scalar_type()) + " " + extents_text(tensor.sizes());
  return fmt::format("{} {}{}", type_text(tensor.scalar_type()), extents_text(tensor.sizes()),
                     tensor.is_contiguous() ? "" : ", strides " + extents_text(tensor.strides()));
}

std::vector<NamedTorchTensor> torch_parameters(const torch::nn::Module& module, const TorchNames& ignored) {
  return each_once(module.named_parameters(), ignored);
}

std::vector<NamedTorchTensor> torch_buffers(const torch::nn::Module& module, const TorchNames& ignored) {
  return each_once(module.named_buffers(), ignored);
}

std::string refused_names(const torch::nn::Module& module, const TorchNames& ignored) {
  const auto parameters = module.named_parameters(), buffers = module.named_buffers();
  for (const std::string& name : ignored)
    if (!parameters.contains(name) && !buffers.contains(name))
      return fmt::format(
          "ignored_parameters has '{}', which is not a parameter or buffer of the module: see named_parameters()",
          name);
  return "";
}

std::optional<DType> dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat: return DType::kFloat32;
    case at::kDouble: return DType::kFloat64;
    case at::kHalf: return DType::kFloat16;
    case at::kBFloat16: return DType::kBFloat16;
    default: return std::nullopt;
  }
}

std::string refused_tensors(const std::vector<NamedTorchTensor>& parameters,
                            const std::vector<NamedTorchTensor>& buffers, const Device& device) {
  if (std::string refusal = refused_places(parameters, buffers, device); !refusal.empty()) return refusal;
  for (const NamedTorchTensor& parameter : parameters)
    if (std::string refusal = refused_parameter(parameter); !refusal.empty()) return refusal;
  for (const NamedTorchTensor& buffer : buffers) {
    if (buffer.second.layout() != at::kStrided)
      return fmt::format("buffer '{}' is sparse: make it dense with to_dense()", buffer.first);
    if (std::string refusal = refused_overlap("buffer", buffer); !refusal.empty()) return refusal;
  }
  const auto requires_grad = [](const NamedTorchTensor& parameter) { return parameter.second.requires_grad(); };
  if (std::none_of(parameters.begin(), parameters.end(), requires_grad))
    return "the module has no parameters that require a gradient (those in ignored_parameters do not count)";
  return "";
}

std::vector<std::string> lines_of(const std::vector<NamedTorchTensor>& parameters,
                                  const std::vector<NamedTorchTensor>& buffers) {
  std::vector<std::string> lines;
  for (const auto& [name, tensor] : parameters)
    lines.push_back(
        fmt::format("parameter '{}' {}{}", name, described(tensor), tensor.requires_grad() ? "" : ", frozen"));
  for (const auto& [name, tensor] : buffers) lines.push_back(fmt::format("buffer '{}' {}", name, described(tensor)));
  if (!parameters.empty())
    lines.push_back("parameters on " + c10::DeviceTypeName(parameters.front().second.device().type(), /*lower=*/true));
  return lines;
}

GradientInfo describe_gradient(const NamedTorchTensor& parameter) {
  const auto& [name, tensor] = parameter;
  const auto dims = static_cast<std::size_t>(tensor.dim());
  const std::int64_t count = tensor.numel();
  return {.name = name,
          .count = static_cast<std::size_t>(count),
          .dtype = *dtype_of(tensor.scalar_type()),
          .device = tensor.is_cuda() ? DeviceKind::kCuda : DeviceKind::kCpu,
          .shape = dims == 0 || dims > Shape::kMaxDims
                       ? Shape{count}
                       : Shape(std::span<const std::int64_t>(tensor.sizes().data(), dims))};
}

void broadcast_values(ProcessGroup& group, TorchStreams& streams, const std::vector<NamedTorchTensor>& tensors,
                      const char* what, int root) {
  if (group.world_size() == 1) return;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> pieces;
  std::vector<Region> regions;
  for (const auto& [name, tensor] : tensors) {
    pieces.push_back(is_one_piece(tensor) ? tensor : tensor.contiguous());
    if (const std::size_t bytes = pieces.back().nbytes(); bytes > 0)
      regions.push_back({pieces.back().mutable_data_ptr(), bytes});
  }
  if (regions.empty()) return;
  if (!pieces.front().is_cuda()) {
    group.broadcast_coalesced(regions, DType::kUInt8, root, {.purpose = {what}});
  } else {
    streams.ours_after_torch();
    group.broadcast_coalesced_async(regions, DType::kUInt8, root, {.purpose = {what}, .device = DeviceKind::kCuda})
        .stream_wait(streams.device().default_stream());
    streams.torch_after_ours();
  }
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (!pieces[i].is_same(tensors[i].second)) tensors[i].second.copy_(pieces[i]);
}

std::vector<TorchModuleWatch::Seen> TorchModuleWatch::seen_of(const std::vector<NamedTorchTensor>& tensors) {
  std::vector<Seen> seen;
  for (const auto& [name, tensor] : tensors)
    seen.push_back({name, tensor, described(tensor), tensor.sizes().vec(), tensor.strides().vec(), tensor.scalar_type(),
                    tensor.device(), tensor.requires_grad()});
  return seen;
}

TorchModuleWatch::TorchModuleWatch(const std::vector<NamedTorchTensor>& parameters,
                                   const std::vector<NamedTorchTensor>& buffers)
    : parameters_(seen_of(parameters)), buffers_(seen_of(buffers)) {}

std::string TorchModuleWatch::added_or_removed(const std::vector<Seen>& seen,
                                               const std::vector<NamedTorchTensor>& now) {
  for (const auto& entry : now) {
    const at::Tensor& tensor = entry.second;
    if (std::none_of(seen.begin(), seen.end(), [&](const Seen& each) { return each.tensor.is_same(tensor); }))
      return fmt::format("'{}' was added", entry.first);
  }
  for (const Seen& each : seen)
    if (std::none_of(now.begin(), now.end(), [&](const auto& entry) { return entry.second.is_same(each.tensor); }))
      return fmt::format("'{}' was removed", each.name);
  return "a tensor is listed another number of times";
}

std::string TorchModuleWatch::difference(const std::vector<Seen>& seen, const std::vector<NamedTorchTensor>& now) {
  if (seen.size() != now.size()) return added_or_removed(seen, now);
  for (std::size_t i = 0; i < now.size(); ++i) {
    const auto& [name, tensor] = now[i];
    if (!tensor.is_same(seen[i].tensor)) return fmt::format("'{}' replaces '{}'", name, seen[i].name);
    if (tensor.device() != seen[i].device)
      return fmt::format("'{}' is on {}, but was on {}", name, tensor.device().str(), seen[i].device.str());
    if (tensor.scalar_type() != seen[i].type || tensor.sizes() != seen[i].sizes || tensor.strides() != seen[i].strides)
      return fmt::format("'{}' is {}, but was {}", name, described(tensor), seen[i].description);
    if (tensor.requires_grad() != seen[i].requires_grad)
      return fmt::format("'{}' {}", name, tensor.requires_grad() ? "is no longer frozen" : "was frozen");
  }
  return "";
}

std::string TorchModuleWatch::change(const std::vector<NamedTorchTensor>& parameters,
                                     const std::vector<NamedTorchTensor>& buffers) const {
  std::string text = difference(parameters_, parameters);
  return text.empty() ? difference(buffers_, buffers) : text;
}

std::string TorchClaim::take(const std::vector<NamedTorchTensor>& parameters) {
  const std::lock_guard lock(claimed_tensors().mutex);
  for (const auto& [name, tensor] : parameters)
    if (claimed_tensors().all.count(tensor.unsafeGetTensorImpl()) != 0)
      return fmt::format(
          "parameter '{}' belongs to another TorchDdp that still exists: destroy that one first, or use only one of "
          "them",
          name);
  for (const auto& [name, tensor] : parameters) {
    claimed_tensors().all.insert(tensor.unsafeGetTensorImpl());
    held_.push_back(tensor.unsafeGetTensorImpl());
  }
  return "";
}

TorchClaim::~TorchClaim() {
  const std::lock_guard lock(claimed_tensors().mutex);
  for (const void* parameter : held_) claimed_tensors().all.erase(parameter);
}

}  // namespace lockstep
