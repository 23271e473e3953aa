#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/core/error.h"
#include "lockstep/tensor/random.h"
#include "src/ddp/replicas.h"
#include "src/train/checkpoint_files.h"
#include "src/train/checkpoint_read.h"

namespace lockstep {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

using namespace checkpoint;

constexpr const char* kAnotherModel = "is of another model";
constexpr const char* kOtherOptions =
    "is of an optimizer with other options (momentum, loss_scaler), of the same model: give this one the options of the run that saved it";

// Throws unless `saved` holds exactly the wanted tensors; says what that means, and the first difference.
void check_names(const std::vector<SavedTensor>& saved, const std::vector<NamedTensor>& wanted, const std::string& path,
                 const char* meaning) {
  const auto with_name = [](const auto& list, const std::string& name) {
    return std::find_if(list.begin(), list.end(), [&](const auto& entry) { return entry.name == name; });
  };
  for (const auto& [name, tensor] : wanted) {
    const auto found = with_name(saved, name);
    if (found == saved.end()) throw FileError("{}: {}: it has no tensor '{}' {}", path, meaning, name, tensor.shape().text());
    if (found->shape != tensor.shape() || found->dtype != tensor.dtype())
      throw FileError("{}: {}: '{}' is {} {} there, {} {} here", path, meaning, name, name_of(found->dtype), found->shape.text(),
                      name_of(tensor.dtype()), tensor.shape().text());
  }
  for (const SavedTensor& tensor : saved)
    if (with_name(wanted, tensor.name) == wanted.end())
      throw FileError("{}: {}: '{}' {} does not exist here", path, meaning, tensor.name, tensor.shape.text());
}

CheckpointState state_of(const json& state) { return {state.at("step"), state.at("epoch"), state.at("world_size"), state.at("folder")}; }

RandomState random_of(const json& state) { return {state.at("random").at("seed"), state.at("random").at("next_stream")}; }

void check_against(const LoadedCheckpoint& loaded, const CheckpointParts& parts) {
  const fs::path folder(loaded.folder);
  check_names(loaded.model, model_tensors(parts.model), (folder / kModel).string(), kAnotherModel);
  const std::string state_path = (folder / kState).string();
  if (parts.optimizer) {
    const std::string kind = loaded.state.contains("optimizer") ? loaded.state.at("optimizer").at("kind").get<std::string>() : "none";
    if (kind != parts.optimizer->kind())
      throw FileError("{}: was saved with optimizer {}, this one is {}", state_path, kind, parts.optimizer->kind());
    if (const auto lr = loaded.state.at("optimizer").at("lr").get<float>(); !optim::is_rate(lr))
      throw FileError("{}: the learning rate {} is none: a finite number that is not negative was expected", state_path, lr);
    check_names(loaded.optimizer, parts.optimizer->state(), (folder / kOptimizer).string(), kOtherOptions);
  }
  if (parts.sampler) {
    if (!loaded.state.contains("sampler")) throw FileError("{}: holds no sampler position", state_path);
    data::DistributedSampler probe = *parts.sampler.get();
    const json& sampler = loaded.state.at("sampler");
    probe.restore({sampler.at("seed"), sampler.at("epoch"), sampler.at("consumed")});
  }
}

void copy_tensors(const std::vector<SavedTensor>& saved, const std::vector<NamedTensor>& wanted) {
  for (const SavedTensor& source : saved)
    for (const auto& [name, tensor] : wanted)
      if (name == source.name && !source.data.empty()) {
        Device& device = tensor.device();
        device.upload(tensor.buffer().data(), source.data.data(), source.data.size(), device.default_stream());
        tensor.mark_changed();
      }
}

// The result of rank 0, as it travels to the others: first letter N (nothing: what is there instead follows), A (wrong argument) or E (an
// error follows), S (a state follows).
std::string read_on_rank_zero(const char* operation, const std::string& folder, const CheckpointParts& parts,
                              std::optional<LoadedCheckpoint>& loaded) {
  if (folder.empty()) return fmt::format("A{}: the folder's name is empty", operation);
  try {
    std::string why_none;
    const auto found = find_checkpoint(folder, why_none);
    if (!found) return "N" + why_none;
    loaded = read_checkpoint(*found);
    check_against(*loaded, parts);
    json message = loaded->state;
    message["folder"] = loaded->folder;
    state_of(message);  // what is missing must be missed before anything is changed
    random_of(message);
    return "S" + message.dump();
  } catch (const Error& error) {
    return fmt::format("E{}", error.what());
  } catch (const std::exception& error) {
    return fmt::format("E{}: the checkpoint cannot be read: {}", folder, error.what());
  }
}

// Nullopt: there is none, and `why_none` says what rank 0 found instead.
std::optional<CheckpointState> load(const char* operation, const std::string& folder, const CheckpointParts& parts, std::string& why_none) {
  const auto group = group_or_default(parts.group);
  if (group) check_same_model(*group, parts.model, operation);
  std::optional<LoadedCheckpoint> loaded;
  std::string outcome;
  if (!group || group->rank() == 0) outcome = read_on_rank_zero(operation, folder, parts, loaded);
  if (group) outcome = group->broadcast_text(outcome, 0, {.purpose = {"checkpoint"}});
  if (outcome[0] == 'A') throw InvalidArgument("{}", outcome.substr(1));
  if (outcome[0] == 'E') throw FileError("{}", outcome.substr(1));
  if (outcome[0] == 'N') {
    why_none = outcome.substr(1);
    return std::nullopt;
  }
  const json state = json::parse(outcome.substr(1));
  const std::vector<NamedTensor> weights = model_tensors(parts.model);
  const std::vector<NamedTensor> moments = parts.optimizer ? parts.optimizer->state() : std::vector<NamedTensor>{};
  if (loaded) {
    copy_tensors(loaded->model, weights);
    if (parts.optimizer) copy_tensors(loaded->optimizer, moments);
  }
  if (parts.sampler) {
    const json& sampler = state.at("sampler");
    parts.sampler->restore({sampler.at("seed"), sampler.at("epoch"), sampler.at("consumed")});
  }
  if (parts.optimizer) parts.optimizer->set_lr(state.at("optimizer").at("lr"));
  set_random_state(random_of(state));
  if (group) {
    replace_by_rank_zeros(*group, weights, "checkpoint weights");
    replace_by_rank_zeros(*group, moments, "checkpoint optimizer state");
    check_replicas_equal(*group, weights, "weights from the checkpoint");
    check_replicas_equal(*group, moments, "optimizer state from the checkpoint");
  }
  return state_of(state);
}

}  // namespace

std::optional<CheckpointState> load_checkpoint(const std::string& folder, const CheckpointParts& parts) {
  std::string why_none;
  return load("load_checkpoint", folder, parts, why_none);
}

CheckpointState resume_checkpoint(const std::string& folder, const CheckpointParts& parts) {
  std::string why_none;
  if (auto state = load("resume_checkpoint", folder, parts, why_none)) return *std::move(state);
  throw FileError("resume_checkpoint: there is no checkpoint to go on from. {}", why_none);
}

}  // namespace lockstep
