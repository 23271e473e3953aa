#include <algorithm>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/tensor/random.h"
#include "src/train/checkpoint_files.h"
#include "src/train/durable_file.h"
#include "src/train/safetensors.h"

namespace lockstep {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

namespace {

using namespace checkpoint;

ordered_json describe_state(const CheckpointParts& parts, int world_size) {
  const RandomState random = random_state();
  ordered_json state = {{"format", kFormat},        {"lockstep", "0.1.0"},
                        {"step", parts.step},       {"epoch", parts.epoch},
                        {"world_size", world_size}, {"random", {{"seed", random.seed}, {"next_stream", random.next_stream}}}};
  if (parts.optimizer) state["optimizer"] = {{"kind", parts.optimizer->kind()}, {"lr", parts.optimizer->lr()}};
  if (parts.sampler) {
    const data::SamplerState sampler = parts.sampler->state();
    state["sampler"] = {{"seed", sampler.seed}, {"epoch", sampler.epoch}, {"consumed", sampler.consumed}};
  }
  if (parts.ddp) {
    ordered_json buckets = ordered_json::array();
    for (const BucketLayout& layout : parts.ddp->reducer().buckets()) {
      ordered_json names = ordered_json::array();
      for (const Slot& slot : layout.slots) names.push_back(parts.ddp->reducer().gradients()[slot.gradient].name);
      buckets.push_back(std::move(names));
    }
    state["buckets"] = std::move(buckets);
  }
  return state;
}

const std::map<std::string, std::string>& metadata() {
  static const std::map<std::string, std::string> kMetadata = {
      {"format", "lockstep"}, {"version", "1"}, {"convolution_weights", "OHWI"}, {"linear_weights", "OI"}, {"flatten", "HWC"}};
  return kMetadata;
}

void remove_quietly(const fs::path& path) {
  std::error_code failure;
  fs::remove_all(path, failure);
  if (failure) log::warn("checkpoint: {} cannot be removed: {}", path.string(), failure.message());
}

// Makes the folder and those above it that are missing, so that they last.
void make_folder(const fs::path& folder) {
  if (folder.empty() || fs::is_directory(folder)) return;
  const fs::path above = folder.parent_path();
  make_folder(above);
  fs::create_directory(folder);
  sync_folder(above.empty() ? "." : above.string());
}

// What a crash left behind: nothing of it counts.
void remove_unfinished(const fs::path& folder) {
  std::vector<fs::path> unfinished;
  for (const auto& entry : fs::directory_iterator(folder))
    if (is_temporary_name(entry.path().filename().string())) unfinished.push_back(entry.path());
  for (const fs::path& path : unfinished) remove_quietly(path);
}

// A run that goes over the same step again must not touch the folder that `latest` may name.
std::string free_name(const fs::path& folder, std::int64_t step) {
  int again = 0;
  while (fs::exists(folder / folder_name(step, again))) ++again;
  return folder_name(step, again);
}

// All files of one checkpoint; returns the manifest's checksum.
std::string write_files(const fs::path& folder, const CheckpointParts& parts, int world_size) {
  ordered_json files;
  const auto note = [&](const char* name, const WrittenFile& written) {
    files[name] = {{"bytes", written.bytes}, {"sha256", written.sha256}};
  };
  const auto write_tensors = [&](const char* name, const std::vector<NamedTensor>& tensors) {
    DurableFile file((folder / name).string());
    write_safetensors(file, tensors, metadata());
    note(name, file.finish());
  };
  write_tensors(kModel, model_tensors(parts.model));
  if (parts.optimizer) write_tensors(kOptimizer, parts.optimizer->state());
  note(kState, write_durably((folder / kState).string(), describe_state(parts, world_size).dump(1) + "\n"));
  const ordered_json manifest = {{"format", kFormat}, {"files", files}};
  const WrittenFile written = write_durably((folder / kManifest).string(), manifest.dump(1) + "\n");
  sync_folder(folder.string());
  return written.sha256;
}

void move_latest(const fs::path& folder, const std::string& name, const std::string& manifest_sha256) {
  const fs::path next = folder / kNextLatest;
  write_durably(next.string(), name + " " + manifest_sha256 + "\n");
  rename_file(next.string(), (folder / kLatest).string());
  sync_folder(folder.string());
}

// The new one and the youngest of the others stay.
void remove_old(const fs::path& folder, const std::string& newest, int keep) {
  std::vector<fs::path> others;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (is_folder_name(name) && name != newest) others.push_back(entry.path());
  }
  std::sort(others.begin(), others.end(),
            [](const fs::path& a, const fs::path& b) { return fs::last_write_time(a) > fs::last_write_time(b); });
  for (std::size_t i = static_cast<std::size_t>(std::max(keep, 1) - 1); i < others.size(); ++i) remove_quietly(others[i]);
}

void write_checkpoint(const fs::path& folder, const std::string& name, const CheckpointParts& parts, int world_size) {
  const fs::path temporary = folder / temporary_name(name);
  try {
    fs::create_directory(temporary);
    const std::string manifest_sha256 = write_files(temporary, parts, world_size);
    rename_file(temporary.string(), (folder / name).string());
    sync_folder(folder.string());
    move_latest(folder, name, manifest_sha256);
  } catch (...) {
    remove_quietly(temporary);
    remove_quietly(folder / kNextLatest);
    throw;
  }
  remove_old(folder, name, parts.keep);
}

// Runs `write` in the folder, which is there then, is no other job's, and holds nothing unfinished.
void in_own_folder(const fs::path& folder, const std::function<void()>& write) {
  try {
    make_folder(folder);
    const FolderLock lock(folder.string());  // else one job would remove what another one is writing
    remove_unfinished(folder);
    write();
  } catch (const fs::filesystem_error& error) {
    throw FileError("{}: the checkpoint cannot be written: {}", folder.string(), error.what());
  }
}

}  // namespace

std::string save_checkpoint(const std::string& folder, const CheckpointParts& parts) {
  if (folder.empty()) throw InvalidArgument("save_checkpoint: the folder's name is empty");
  const auto group = group_or_default(parts.group);
  if (group && group->rank() != 0) return "";
  const fs::path path(folder);
  std::string name;
  in_own_folder(path, [&] {
    name = free_name(path, parts.step);
    write_checkpoint(path, name, parts, group ? group->world_size() : 1);
  });
  return (path / name).string();
}

void prepare_checkpoint_folder(const std::string& folder, const std::shared_ptr<ProcessGroup>& group) {
  if (folder.empty()) throw InvalidArgument("prepare_checkpoint_folder: the folder's name is empty");
  const auto present = group_or_default(group);
  if (present && present->rank() != 0) return;
  const fs::path path(folder);
  in_own_folder(path, [&] {
    write_durably((path / kNextLatest).string(), "\n");
    remove_unfinished(path);
  });
}

}  // namespace lockstep
