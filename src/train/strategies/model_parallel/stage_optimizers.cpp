#include "src/train/strategies/model_parallel/stage_optimizers.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "src/optim/step_parts.h"
#include "src/train/strategies/model_copies.h"
#include "src/train/strategies/model_parallel/pipeline_stage.h"

namespace lockstep::train {

namespace {

using nlohmann::json;
using optim::StatePart;

class Untrained : public optim::Optimizer {
 public:
  Untrained(const std::string& kind, float lr)
      : Optimizer({.kind = kind.c_str(), .lr = lr, .weight_decay = 0, .loss_scaler = nullptr}) {}

 protected:
  void update(std::span<const UpdateTensor>, const GroupStep&, const KernelTable&, Stream&) override {
  }  // has no tensors
};

json describe(optim::Optimizer* optimizer, int stage) {
  if (optimizer == nullptr) return nullptr;
  json parts = json::array();
  for (const StatePart& part :
       optim::Team(kModelParallel, optim::Team::Kind::kStages, {optimizer}).parts_of_stage(stage))
    parts.push_back({part.name, static_cast<int>(part.values.dtype()),
                     std::vector<std::int64_t>(part.whole.extents().begin(), part.whole.extents().end())});
  return {{"kind", optimizer->kind()},
          {"lr", optimizer->lr()},
          {"scaler", description_of(optim::StepParts(*optimizer).loss_scaler())},
          {"parts", parts}};
}

void check_scalers(const std::vector<json>& stages) {
  const std::string none = description_of(nullptr);
  std::size_t with = stages.size();
  for (std::size_t rank = 0; rank < stages.size(); ++rank)
    if (!stages[rank].is_null() && stages[rank].at("scaler") != none && with == stages.size()) with = rank;
  if (with == stages.size()) return;
  for (std::size_t rank = 0; rank < stages.size(); ++rank) {
    if (stages[rank].is_null())
      throw InvalidArgument(
          "{}: the optimizer of rank {} has a LossScaler, and the stage of rank {} trains nothing, so that no "
          "optimizer changes its scale: choose .stage_layers that give each rank something to train, keep the stages "
          "in one process, or compute in bfloat16",
          kModelParallel, with, rank);
    if (stages[rank].at("scaler") != stages[with].at("scaler"))
      throw InvalidArgument(
          "{}: rank {} has {}, and rank {} has {}: make one with the same options on each rank, for its optimizer and "
          "its loss",
          kModelParallel, with, stages[with].at("scaler").get<std::string>(), rank,
          stages[rank].at("scaler").get<std::string>());
  }
}

std::vector<StatePart> empty_parts(const json& stage) {
  std::vector<StatePart> parts;
  if (stage.is_null()) return parts;
  for (const json& part : stage.at("parts"))
    parts.push_back({part.at(0).get<std::string>(),
                     Tensor::empty({0}, static_cast<DType>(part.at(1).get<int>()), cpu_device()),
                     Shape(part.at(2).get<std::vector<std::int64_t>>()), 0, true});
  return parts;
}

}  // namespace

optim::Optimizer* share_stages(ProcessGroup& group, optim::Optimizer* own, std::unique_ptr<optim::Optimizer>& untrained,
                               std::optional<optim::Team>& team) {
  const auto rank = static_cast<std::size_t>(group.rank());
  std::vector<json> stages;
  const json* trained = nullptr;
  for (const std::string& text :
       group.all_gather_text(describe(own, group.rank()).dump(), {.purpose = {"stages' optimizers"}}))
    stages.push_back(json::parse(text));
  for (auto stage = stages.rbegin(); stage != stages.rend(); ++stage)
    if (!stage->is_null()) trained = &*stage;
  if (trained == nullptr)
    throw InvalidArgument("{}: the model has no parameter that requires a gradient", kModelParallel);
  check_scalers(stages);
  if (own == nullptr) {
    untrained = std::make_unique<Untrained>(trained->at("kind").get<std::string>(), trained->at("lr").get<float>());
    own = untrained.get();
  }
  team.emplace(kModelParallel, optim::Team::Kind::kStages, std::vector{own});
  if (stages.size() == 1) return own;
  std::vector<StatePart> before, after;
  for (std::size_t stage = 0; stage < stages.size(); ++stage)
    for (StatePart& part : empty_parts(stages[stage]))
      if (stage != rank) (stage < rank ? before : after).push_back(std::move(part));
  team->set_only_stage(group.rank(), std::move(before), std::move(after), group.world_size());
  return own;
}

}  // namespace lockstep::train
