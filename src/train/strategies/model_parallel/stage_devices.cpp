#include "src/train/strategies/model_parallel/stage_devices.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "lockstep/core/error.h"
#include "lockstep/nn/layers.h"
#include "src/train/strategies/model_parallel/pipeline_plan.h"
#include "src/train/strategies/model_parallel/pipeline_stage.h"

namespace lockstep::train {

namespace {

std::vector<std::size_t> sizes_of_stages(const std::vector<nn::Module*>& layers, std::size_t stages,
                                         const std::vector<int>& asked) {
  if (stages > layers.size())
    throw InvalidArgument(
        "{}: {} stages, one for each device, but only {} layers: every stage needs a layer: use fewer devices, or "
        "ranks",
        kModelParallel, stages, layers.size());
  if (asked.empty()) {
    std::vector<std::uint64_t> bytes;
    for (const nn::Module* layer : layers) {
      bytes.push_back(0);
      for (const Tensor& parameter : layer->parameters()) bytes.back() += parameter.bytes();
    }
    return split_layers(bytes, stages);
  }
  const bool all_positive = std::all_of(asked.begin(), asked.end(), [](int size) { return size > 0; });
  if (asked.size() != stages || !all_positive ||
      std::accumulate(asked.begin(), asked.end(), 0) != static_cast<int>(layers.size()))
    throw InvalidArgument(
        "{}: .stage_layers has {} numbers with sum {}; expected a positive number for each of {} stages, with sum {}, "
        "the layers",
        kModelParallel, asked.size(), std::accumulate(asked.begin(), asked.end(), 0), stages, layers.size());
  return {asked.begin(), asked.end()};
}

void check_not_shared(const std::vector<std::vector<nn::Module*>>& stages) {
  std::vector<std::pair<std::size_t, NamedTensor>> seen;
  for (std::size_t stage = 0; stage < stages.size(); ++stage)
    for (const nn::Module* layer : stages[stage])
      for (const NamedTensor& parameter : layer->named_parameters()) {
        for (const auto& [other, known] : seen)
          if (other != stage && known.tensor.is_same(parameter.tensor))
            throw InvalidArgument(
                "{}: stages {} and {} share the parameter '{}' of shape {}: choose .stage_layers so that one stage has "
                "both uses",
                kModelParallel, other, stage, parameter.name, parameter.tensor.shape().text());
        seen.emplace_back(stage, parameter);
      }
}

using Cut = std::vector<std::vector<nn::Module*>>;

std::size_t most_devices_of(const std::vector<nn::Module*>& layers) {
  std::size_t most = 1;
  for (nn::Module* layer : layers)
    for (const nn::Branches* branches : branches_in(*layer)) most = std::max(most, branches->size());
  return most;
}

std::size_t most_devices_of(const Cut& cut) {
  std::size_t most = 0;
  for (const auto& layers : cut) most += most_devices_of(layers);
  return most;
}

// Earlier stages take as many devices as they can use, as long as each later one gets one.
std::vector<StagePlan> give_devices(const Cut& cut, const std::vector<Device*>& devices) {
  std::vector<StagePlan> plans;
  auto next = devices.begin();
  for (std::size_t stage = 0; stage < cut.size(); ++stage) {
    const auto left = static_cast<std::size_t>(devices.end() - next) - (cut.size() - 1 - stage);
    const auto end = next + static_cast<std::ptrdiff_t>(std::min(most_devices_of(cut[stage]), left));
    plans.push_back({cut[stage], {next, end}});
    next = end;
  }
  return plans;
}

}  // namespace

std::vector<std::vector<nn::Module*>> cut_into_stages(nn::Module& model, std::size_t stages,
                                                      const std::vector<int>& stage_layers) {
  if (dynamic_cast<nn::Sequential*>(&model) == nullptr)
    throw InvalidArgument(
        "{}: the model is a {}: stages are runs of layers of an nn::Sequential; make it one, or move its parts to "
        "devices by hand, with to_device() between them",
        kModelParallel, model.kind());
  if (!model.own_parameters().empty() || !model.own_buffers().empty())
    throw InvalidArgument("{}: the Sequential has tensors outside its layers, which belong to no stage",
                          kModelParallel);
  std::vector<nn::Module*> layers;
  for (const auto& child : model.children()) layers.push_back(child.second);
  std::vector<std::vector<nn::Module*>> cut;
  auto next = layers.begin();
  for (const std::size_t size : sizes_of_stages(layers, stages, stage_layers)) {
    cut.emplace_back(next, next + static_cast<std::ptrdiff_t>(size));
    next += static_cast<std::ptrdiff_t>(size);
  }
  check_not_shared(cut);
  return cut;
}

std::vector<nn::Branches*> branches_in(nn::Module& layer) {
  if (auto* const branches = dynamic_cast<nn::Branches*>(&layer)) return {branches};
  std::vector<nn::Branches*> all;
  for (const auto& [name, child] : layer.children()) {
    const std::vector<nn::Branches*> below = branches_in(*child);
    all.insert(all.end(), below.begin(), below.end());
  }
  return all;
}

std::vector<StagePlan> plan_stages(nn::Module& model, const std::vector<Device*>& devices,
                                   const std::vector<int>& stage_layers) {
  if (branches_in(model).empty()) return give_devices(cut_into_stages(model, devices.size(), stage_layers), devices);
  if (stage_layers.empty()) {
    const std::size_t most_stages = std::min(devices.size(), std::max<std::size_t>(model.children().size(), 1));
    for (std::size_t stages = 1; stages < most_stages; ++stages)
      if (const Cut cut = cut_into_stages(model, stages, {}); most_devices_of(cut) >= devices.size())
        return give_devices(cut, devices);
    const Cut cut = cut_into_stages(model, most_stages, {});
    if (most_devices_of(cut) < devices.size())
      throw InvalidArgument("{}: {} devices, but {} stages with the model's branches use at most {}: use fewer devices",
                            kModelParallel, devices.size(), most_stages, most_devices_of(cut));
    return give_devices(cut, devices);
  }
  const Cut cut = cut_into_stages(model, stage_layers.size(), stage_layers);
  if (cut.size() > devices.size() || most_devices_of(cut) < devices.size())
    throw InvalidArgument(
        "{}: .stage_layers has {} stages, which use {} to {} devices with their branches, but .devices has {}",
        kModelParallel, cut.size(), cut.size(), most_devices_of(cut), devices.size());
  return give_devices(cut, devices);
}

void place_layers(const std::vector<nn::Module*>& layers, const std::vector<Device*>& devices) {
  for (nn::Module* layer : layers) {
    layer->to(*devices.front());
    for (nn::Branches* branches : branches_in(*layer)) branches->place(devices);
  }
}

}  // namespace lockstep::train
