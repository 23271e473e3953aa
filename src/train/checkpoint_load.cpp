#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>

#include "lockstep/core/error.h"
#include "lockstep/tensor/random.h"
#include "src/ddp/replicas.h"
#include "src/train/checkpoint_files.h"
#include "src/train/durable_file.h"
#include "src/train/safetensors.h"

namespace lockstep {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

using namespace checkpoint;

// A checkpoint in memory: read, verified and parsed as a whole before anything of the caller's is touched.
struct LoadedCheckpoint {
  std::string folder;
  json state;
  std::map<std::string, std::vector<std::byte>> files;
  std::vector<SavedTensor> model, optimizer;  // views of files
};

std::string text_of(const std::vector<std::byte>& bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

json parse_json(const std::vector<std::byte>& bytes, const std::string& path) {
  try {
    return json::parse(text_of(bytes));
  } catch (const json::exception& error) {
    throw FileError("{}: is damaged: {}", path, error.what());
  }
}

std::vector<std::byte> read_verified(const std::string& path, const std::string& sha256) {
  std::vector<std::byte> bytes = read_file(path);
  if (const std::string actual = crypto::hex(crypto::sha256(bytes)); actual != sha256)
    throw FileError("{}: is damaged: its SHA-256 is {}, expected {}", path, actual, sha256);
  return bytes;
}

// What `latest` names; nullopt when there is none.
std::optional<std::pair<std::string, std::string>> read_latest(const fs::path& folder) {
  const fs::path path = folder / kLatest;
  if (!fs::exists(path)) return std::nullopt;
  static const std::regex kForm(fmt::format("({}) ([0-9a-f]{{64}})\n", kFolderForm));
  const std::string text = text_of(read_file(path.string()));
  std::smatch parts;
  if (!std::regex_match(text, parts, kForm)) throw FileError("{}: is damaged: expected a folder's name and a checksum", path.string());
  return std::pair(parts[1].str(), parts[2].str());
}

LoadedCheckpoint read_checkpoint(const fs::path& folder, const std::string& manifest_sha256) {
  LoadedCheckpoint loaded;
  loaded.folder = folder.string();
  const std::string manifest_path = (folder / kManifest).string();
  const json manifest = parse_json(read_verified(manifest_path, manifest_sha256), manifest_path);
  if (manifest.at("format") != kFormat)
    throw FileError("{}: has format {}, this version of Lockstep reads {}", manifest_path, manifest.at("format").dump(), kFormat);
  for (const auto& [name, entry] : manifest.at("files").items()) {
    if (name != kModel && name != kOptimizer && name != kState)
      throw FileError("{}: lists '{}', which is no file of a checkpoint", manifest_path, name);
    loaded.files[name] = read_verified((folder / name).string(), entry.at("sha256").get<std::string>());
  }
  for (const char* needed : {kModel, kState})
    if (loaded.files.count(needed) == 0) throw FileError("{}: does not list {}", manifest_path, needed);
  loaded.state = parse_json(loaded.files.at(kState), (folder / kState).string());
  loaded.model = parse_safetensors(loaded.files.at(kModel), (folder / kModel).string());
  if (loaded.files.count(kOptimizer) != 0)
    loaded.optimizer = parse_safetensors(loaded.files.at(kOptimizer), (folder / kOptimizer).string());
  return loaded;
}

// Throws unless `saved` holds exactly the wanted tensors; names the first difference.
void check_names(const std::vector<SavedTensor>& saved, const std::vector<NamedTensor>& wanted, const std::string& path) {
  const auto with_name = [](const auto& list, const std::string& name) {
    return std::find_if(list.begin(), list.end(), [&](const auto& entry) { return entry.name == name; });
  };
  for (const auto& [name, tensor] : wanted) {
    const auto found = with_name(saved, name);
    if (found == saved.end()) throw FileError("{}: is of another model: it has no tensor '{}' {}", path, name, tensor.shape().text());
    if (found->shape != tensor.shape() || found->dtype != tensor.dtype())
      throw FileError("{}: is of another model: '{}' is {} {} there, {} {} here", path, name, name_of(found->dtype), found->shape.text(),
                      name_of(tensor.dtype()), tensor.shape().text());
  }
  for (const SavedTensor& tensor : saved)
    if (with_name(wanted, tensor.name) == wanted.end())
      throw FileError("{}: is of another model: '{}' {} does not exist here", path, tensor.name, tensor.shape.text());
}

CheckpointState describe(const json& state) { return {state.at("step"), state.at("epoch"), state.at("world_size"), state.at("folder")}; }

RandomState random_of(const json& state) { return {state.at("random").at("seed"), state.at("random").at("next_stream")}; }

void check_against(const LoadedCheckpoint& loaded, const CheckpointParts& parts) {
  const fs::path folder(loaded.folder);
  check_names(loaded.model, model_tensors(parts.model), (folder / kModel).string());
  const std::string state_path = (folder / kState).string();
  if (parts.optimizer) {
    const std::string kind = loaded.state.contains("optimizer") ? loaded.state.at("optimizer").at("kind").get<std::string>() : "none";
    if (kind != parts.optimizer->kind())
      throw FileError("{}: was saved with optimizer {}, this one is {}", state_path, kind, parts.optimizer->kind());
    loaded.state.at("optimizer").at("lr").get<float>();
    check_names(loaded.optimizer, parts.optimizer->state(), (folder / kOptimizer).string());
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
      }
}

// What rank 0 found, as it travels to the others: first letter N (nothing), E (an error follows), S (a state follows).
std::string read_on_rank_zero(const std::string& folder, const CheckpointParts& parts, std::optional<LoadedCheckpoint>& loaded) {
  try {
    const auto latest = read_latest(folder);
    if (!latest) return "N";
    loaded = read_checkpoint(fs::path(folder) / latest->first, latest->second);
    check_against(*loaded, parts);
    json message = loaded->state;
    message["folder"] = loaded->folder;
    describe(message);  // what is missing must be missed before anything is changed
    random_of(message);
    return "S" + message.dump();
  } catch (const Error& error) {
    return fmt::format("E{}", error.what());
  } catch (const std::exception& error) {
    return fmt::format("E{}: the checkpoint cannot be read: {}", folder, error.what());
  }
}

}  // namespace

std::optional<CheckpointState> load_checkpoint(const std::string& folder, const CheckpointParts& parts) {
  const auto group = group_or_default(parts.group);
  if (group) check_same_model(*group, parts.model, "load_checkpoint");
  std::optional<LoadedCheckpoint> loaded;
  std::string outcome;
  if (!group || group->rank() == 0) outcome = read_on_rank_zero(folder, parts, loaded);
  if (group) outcome = group->broadcast_text(outcome, 0, {.purpose = {"checkpoint"}});
  if (outcome == "N") return std::nullopt;
  if (outcome[0] == 'E') throw FileError("{}", outcome.substr(1));

  const json state = json::parse(outcome.substr(1));
  const CheckpointState result = describe(state);
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
    broadcast_tensors(*group, weights, "checkpoint weights");
    broadcast_tensors(*group, moments, "checkpoint optimizer state");
    check_replicas_equal(*group, weights, "weights from the checkpoint");
    check_replicas_equal(*group, moments, "optimizer state from the checkpoint");
  }
  return result;
}

}  // namespace lockstep
