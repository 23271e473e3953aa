#include <filesystem>
#include <list>
#include <nlohmann/json.hpp>

#include "lockstep/core/error.h"
#include "lockstep/core/version.h"
#include "lockstep/tensor/random.h"
#include "src/train/checkpoint_files.h"
#include "src/train/checkpoint_folder.h"
#include "src/train/durable_file.h"
#include "src/train/hook_state.h"
#include "src/train/safetensors.h"

namespace lockstep {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

namespace {

using namespace checkpoint;

ordered_json describe_state(const CheckpointParts& parts, int world_size) {
  const RandomState random = random_state();
  ordered_json state = {{"format", kFormat},
                        {"lockstep", LOCKSTEP_VERSION},
                        {"step", parts.step},
                        {"epoch", parts.epoch},
                        {"world_size", world_size},
                        {"random", {{"seed", random.seed}, {"next_stream", random.next_stream}, {"next_dropout", random.next_dropout}}}};
  if (parts.optimizer) state["optimizer"] = {{"kind", parts.optimizer->kind()}, {"lr", parts.optimizer->lr()}};
  if (parts.loader)
    state["sampler"] = nlohmann::json(parts.loader->state());
  else if (parts.sampler)
    state["sampler"] = nlohmann::json(parts.sampler->state());
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

// The files of one checkpoint, in the folder that becomes it. Where files need no name, the folder is made when all are on the disk: a
// process that is killed before leaves nothing.
class Writer {
 public:
  // `born_in`: where files without a name are made; empty: they have their names from the start.
  Writer(const fs::path& temporary, const std::string& born_in) : temporary_(temporary), born_in_(born_in) {
    if (born_in_.empty()) fs::create_directory(temporary_);
  }

  void write(const char* name, const std::vector<NamedTensor>& tensors) {
    DurableFile& file = add(name);
    write_safetensors(file, tensors, metadata());
    note(name, file.finish());
  }
  void write(const char* name, const std::string& text) {
    DurableFile& file = add(name);
    file.write(text);
    note(name, file.finish());
  }

  // Returns the manifest's checksum.
  std::string finish() {
    DurableFile& file = add(kManifest);
    file.write(ordered_json{{"format", kFormat}, {"files", written_}}.dump(1) + "\n");
    const std::string sha256 = file.finish().sha256;
    if (!born_in_.empty()) {
      fs::create_directory(temporary_);
      for (DurableFile& each : files_) each.give_name();
    }
    sync_folder(temporary_.string());
    return sha256;
  }

 private:
  DurableFile& add(const char* name) { return files_.emplace_back((temporary_ / name).string(), born_in_); }
  void note(const char* name, const WrittenFile& file) { written_[name] = {{"bytes", file.bytes}, {"sha256", file.sha256}}; }

  fs::path temporary_;
  std::string born_in_;
  std::list<DurableFile> files_;
  ordered_json written_;
};

void move_latest(const fs::path& folder, const std::string& name, const std::string& manifest_sha256, const std::string& born_in) {
  const fs::path next = folder / kNextLatest;
  DurableFile file(next.string(), born_in);
  file.write(name + " " + manifest_sha256 + "\n");
  file.finish();
  if (!born_in.empty()) file.give_name();
  rename_file(next.string(), (folder / kLatest).string());
  sync_folder(folder.string());
}

void write_checkpoint(const fs::path& folder, const std::string& name, const CheckpointParts& parts, const std::vector<NamedTensor>& hook,
                      int world_size) {
  const fs::path temporary = folder / temporary_name(name);
  const std::string born_in = has_nameless_files((folder / kNextLatest).string()) ? folder.string() : "";
  try {
    Writer writer(temporary, born_in);
    writer.write(kModel, parts.model.state_dict());
    if (parts.optimizer) writer.write(kOptimizer, parts.optimizer->state());
    if (parts.ema) writer.write(kAverages, parts.ema->state());
    if (!hook.empty()) writer.write(kHook, hook);
    writer.write(kState, describe_state(parts, world_size).dump(1) + "\n");
    const std::string manifest_sha256 = writer.finish();
    rename_file(temporary.string(), (folder / name).string());
    sync_folder(folder.string());
    move_latest(folder, name, manifest_sha256, born_in);
  } catch (...) {
    remove_quietly(temporary);
    remove_quietly(folder / kNextLatest);
    throw;
  }
  remove_old(folder, name, parts.keep);
}

}  // namespace

std::string save_checkpoint(const std::string& folder, const CheckpointParts& parts) {
  if (folder.empty()) throw InvalidArgument("save_checkpoint: the folder's name is empty");
  const auto group = group_or_default(parts.group);
  const std::vector<NamedTensor> hook = gather_hook_state(parts.ddp ? parts.ddp->comm_hook() : CommHook(), group.get());
  if (group && group->rank() != 0) return "";
  const fs::path path(folder);
  std::string name;
  in_own_folder(path, [&] {
    name = free_name(path, parts.step);
    write_checkpoint(path, name, parts, hook, group ? group->world_size() : 1);
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
    remove_quietly(path / kNextLatest);
  });
}

}  // namespace lockstep
