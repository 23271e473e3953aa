#include "lockstep/nn/lora.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <regex>
#include <set>

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/matmul.h"
#include "lockstep/autograd/variable.h"
#include "lockstep/core/error.h"
#include "src/nn/layers/low_rank.h"

namespace lockstep::nn {

namespace {

struct FoundLinear {
  std::string path;
  Linear* layer;
};

void collect_linears(const Module& module, const std::string& path, std::vector<FoundLinear>& found) {
  for (const auto& [name, child] : module.children()) {
    const std::string child_path = path.empty() ? name : path + "." + name;
    if (auto* const layer = dynamic_cast<Linear*>(child))
      found.push_back({child_path, layer});
    else
      collect_linears(*child, child_path, found);
  }
}

// A module hands out its children for changing; the same goes for a module that is a Linear itself.
std::vector<FoundLinear> linears_of(const Module& module) {
  if (const auto* const layer = dynamic_cast<const Linear*>(&module)) return {{"", const_cast<Linear*>(layer)}};
  std::vector<FoundLinear> found;
  collect_linears(module, "", found);
  return found;
}

std::regex pattern_of(const std::string& target) {
  try {
    return std::regex(target);
  } catch (const std::regex_error& error) {
    throw InvalidArgument("add_lora: the target '{}' is not a regular expression: {}", target, error.what());
  }
}

void check_options(const LoraOptions& options) {
  if (options.rank < 1) throw InvalidArgument("add_lora: rank must be at least 1, got {}", options.rank);
  if (!std::isfinite(options.alpha)) throw InvalidArgument("add_lora: alpha must be finite, got {}", options.alpha);
  if (!(options.dropout >= 0 && options.dropout < 1))
    throw InvalidArgument("add_lora: dropout must be in [0, 1), got {}", options.dropout);
}

void check_layer(const FoundLinear& found, const LoraOptions& options) {
  const Shape& shape = found.layer->weight.shape();
  if (found.layer->low_rank() != nullptr)
    throw InvalidArgument("add_lora: '{}' has lora_A and lora_B already: merge_lora() first", found.path);
  if (options.rank > std::max(shape[0], shape[1]))
    throw InvalidArgument("add_lora: rank {} is larger than both sizes of '{}' {}", options.rank, found.path,
                          shape.text());
}

// Merging would change the other name's weight as well.
void check_alone(const FoundLinear& found, const std::vector<NamedTensor>& all) {
  const std::string own = found.path.empty() ? "weight" : found.path + ".weight";
  for (const NamedTensor& entry : all)
    if (entry.name != own && entry.tensor.buffer().data() == found.layer->weight.buffer().data())
      throw InvalidArgument("add_lora: '{}' shares its memory with '{}': choose a target without tied weights", own,
                            entry.name);
}

std::vector<FoundLinear> layers_to_adapt(Module& module, const LoraOptions& options) {
  std::vector<FoundLinear> found = linears_of(module);
  if (found.empty()) throw InvalidArgument("add_lora: {} contains no Linear", module.kind());
  if (!options.target.empty()) {
    const std::regex pattern = pattern_of(options.target);
    const std::string first = found.front().path;
    std::erase_if(found, [&](const FoundLinear& each) { return !std::regex_match(each.path, pattern); });
    if (found.empty())
      throw InvalidArgument("add_lora: the target '{}' matches the path of no Linear of {}, such as '{}'",
                            options.target, module.kind(), first);
  }
  const std::vector<NamedTensor> all = module.state_dict();
  for (const FoundLinear& each : found) {
    check_layer(each, options);
    check_alone(each, all);
  }
  return found;
}

}  // namespace

std::vector<std::string> add_lora(Module& module, const LoraOptions& options) {
  check_options(options);
  const std::vector<FoundLinear> found = layers_to_adapt(module, options);
  if (options.freeze_others) {
    module.freeze();
    for (const auto& [path, layer] : linears_of(module))  // of earlier calls
      if (const Linear::LowRank* const matrices = layer->low_rank())
        require_grad(matrices->a.weight), require_grad(matrices->b.weight);
  }
  std::vector<std::string> paths;
  const float scale = options.alpha / static_cast<float>(options.rank);
  for (const auto& [path, layer] : found) {
    const Shape& shape = layer->weight.shape();
    auto low_rank = std::make_unique<Linear::LowRank>(shape[1], options.rank, shape[0], scale, options.dropout);
    const std::string prefix = path.empty() ? "" : path + ".";
    low_rank->a.to(layer->weight.device());
    low_rank->b.to(layer->weight.device());
    layer->set_low_rank(std::move(low_rank));
    layer->train(layer->is_training());
    set_name(layer->low_rank()->a.weight, prefix + kLoraA + ".weight");
    set_name(layer->low_rank()->b.weight, prefix + kLoraB + ".weight");
    paths.push_back(path);
  }
  return paths;
}

Tensor merged_weight(const Linear& layer) {
  const NoGrad no_grad;
  const AutoCast no_cast(DType::kFloat32);  // weights keep their precision
  const Linear::LowRank& low_rank = *layer.low_rank();
  return layer.weight + scale(matmul(low_rank.b.weight, low_rank.a.weight), low_rank.scale);
}

void merge_lora(Module& module) {
  bool merged = false;
  for (const auto& [path, layer] : linears_of(module)) {
    if (layer->low_rank() == nullptr) continue;
    layer->weight.copy_from(merged_weight(*layer));
    layer->set_low_rank(nullptr);
    merged = true;
  }
  if (!merged) throw InvalidArgument("merge_lora: no Linear of {} has lora_A and lora_B", module.kind());
}

std::vector<NamedTensor> merged_state_dict(const Module& module) {
  std::vector<NamedTensor> entries = module.state_dict();
  for (const auto& [path, layer] : linears_of(module)) {
    if (layer->low_rank() == nullptr) continue;
    const std::string prefix = path.empty() ? "" : path + ".";
    const std::set<std::string> matrices = {prefix + kLoraA + ".weight", prefix + kLoraB + ".weight"};
    std::erase_if(entries, [&](const NamedTensor& entry) { return matrices.count(entry.name) != 0; });
    for (NamedTensor& entry : entries)
      if (entry.name == prefix + "weight") entry.tensor = merged_weight(*layer);
  }
  return entries;
}

}  // namespace lockstep::nn
