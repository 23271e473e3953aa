#include <filesystem>
#include <functional>
#include <list>
#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/core/error.h"
#include "lockstep/core/version.h"
#include "lockstep/tensor/random.h"
#include "src/ddp/replica_check.h"
#include "src/train/checkpoint_files.h"
#include "src/train/checkpoint_folder.h"
#include "src/train/checkpoint_shards.h"
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
    state["buckets_rebuilt"] = parts.ddp->has_rebuilt_buckets();
  }
  if (parts.program && !parts.program->text.empty()) state["program"] = parts.program->text;
  return state;
}

std::string text_of(const ordered_json& state) {
  try {
    return state.dump(1) + "\n";
  } catch (const ordered_json::type_error& error) {
    throw InvalidArgument("save_checkpoint: a text of the state, that of .program perhaps, is no UTF-8: {}", error.what());
  }
}

// The files of one checkpoint, in the folder that becomes it. Where files need no name, the folder is made when all are on the disk: a
// process that is killed before leaves nothing.
class Writer {
 public:
  // `born_in`: where files without a name are made; empty: they have their names from the start.
  Writer(const fs::path& temporary, const std::string& born_in, bool makes_folder = true) : temporary_(temporary), born_in_(born_in) {
    if (born_in_.empty() && makes_folder) fs::create_directory(temporary_);
  }

  void write(const std::string& name, const std::vector<NamedTensor>& tensors, const std::map<std::string, std::string>& more = {}) {
    DurableFile& file = add(name);
    std::map<std::string, std::string> all = metadata();
    all.insert(more.begin(), more.end());
    write_safetensors(file, tensors, all);
    note(name, file.finish());
  }
  void write(const std::string& name, const std::string& text) {
    DurableFile& file = add(name);
    file.write(text);
    note(name, file.finish());
  }

  // The files so far, as the manifest lists them; those that another rank has written.
  const ordered_json& written() const { return written_; }
  void add_written(const ordered_json& others) { written_.update(others); }

  // Returns the manifest's checksum.
  std::string finish() {
    DurableFile& file = add(kManifest);
    file.write(ordered_json{{"format", kFormat}, {"files", written_}}.dump(1) + "\n");
    const std::string sha256 = file.finish().sha256;
    if (!born_in_.empty()) fs::create_directory(temporary_);
    give_names();
    sync_folder(temporary_.string());
    return sha256;
  }

  void give_names() {
    if (born_in_.empty()) return;
    for (DurableFile& each : files_) each.give_name();
  }

 private:
  DurableFile& add(const std::string& name) { return files_.emplace_back((temporary_ / name).string(), born_in_); }
  void note(const std::string& name, const WrittenFile& file) { written_[name] = {{"bytes", file.bytes}, {"sha256", file.sha256}}; }

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

void write_all_but_slices(Writer& writer, const CheckpointParts& parts, const std::vector<NamedTensor>& hook, int world_size) {
  writer.write(kModel, parts.model.state_dict());
  if (parts.optimizer && parts.optimizer->slice_ranks() == 1) writer.write(kOptimizer, parts.optimizer->state());
  if (parts.ema) writer.write(kAverages, parts.ema->state());
  if (!hook.empty()) writer.write(kHook, hook);
  if (parts.program && !parts.program->tensors.empty()) writer.write(kProgram, parts.program->tensors);
  writer.write(kState, text_of(describe_state(parts, world_size)));
}

// Calls `write` with the folder that becomes the checkpoint and the one where files are made without a name, or "".
void in_temporary(const fs::path& folder, const std::string& name,
                  const std::function<void(const fs::path& temporary, const std::string& born_in)>& write) {
  const fs::path temporary = folder / temporary_name(name);
  const std::string born_in = has_nameless_files((folder / kNextLatest).string()) ? folder.string() : "";
  try {
    write(temporary, born_in);
  } catch (...) {
    remove_quietly(temporary);
    remove_quietly(folder / kNextLatest);
    throw;
  }
}

void put_in_place(const fs::path& folder, const std::string& name, const fs::path& temporary, const std::string& manifest_sha256,
                  const std::string& born_in) {
  rename_file(temporary.string(), (folder / name).string());
  sync_folder(folder.string());
  move_latest(folder, name, manifest_sha256, born_in);
}

void write_checkpoint(const fs::path& folder, const std::string& name, const CheckpointParts& parts, const std::vector<NamedTensor>& hook,
                      int world_size) {
  in_temporary(folder, name, [&](const fs::path& temporary, const std::string& born_in) {
    Writer writer(temporary, born_in);
    write_all_but_slices(writer, parts, hook, world_size);
    put_in_place(folder, name, temporary, writer.finish(), born_in);
  });
  remove_old(folder, name, parts.keep);
}

// Calls `act` on this rank and returns what it returned on each rank; where it threw on one, FileError on all.
std::vector<std::string> on_all_ranks(ProcessGroup& group, const std::function<std::string()>& act) {
  std::string outcome;
  try {
    outcome = "+" + act();
  } catch (const std::exception& error) {
    outcome = fmt::format("-{}", error.what());
  }
  std::vector<std::string> outcomes = group.all_gather_text(outcome, {.purpose = {"checkpoint"}});
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    if (outcomes[rank][0] == '-')
      throw FileError("save_checkpoint: rank {}: {}{}", rank, outcomes[rank].substr(1),
                      rank == 0 ? "" : ": each rank writes its slices of the optimizer's state: name a folder that all ranks see");
    outcomes[rank].erase(0, 1);
  }
  return outcomes;
}

// Rank 0's part of a save in which each rank writes its slices: everything else, and what makes it a checkpoint. Returns when all are done.
void lead_save(ProcessGroup& group, const fs::path& folder, const std::string& name, const CheckpointParts& parts,
               const std::vector<NamedTensor>& hook, bool& told) {
  in_temporary(folder, name, [&](const fs::path& temporary, const std::string& born_in) {
    Writer writer(temporary, born_in);
    told = true;
    on_all_ranks(group, [&] { return ordered_json{{"temporary", temporary.string()}, {"born_in", born_in}}.dump(); });
    const std::vector<optim::StatePart> state = parts.optimizer->state_parts();
    const std::vector<std::string> written = on_all_ranks(group, [&] {
      writer.write(shard_name(0, group.world_size()), shard_of(state, 0), shard_metadata(state));
      write_all_but_slices(writer, parts, hook, group.world_size());
      return std::string();
    });
    for (std::size_t rank = 1; rank < written.size(); ++rank) writer.add_written(ordered_json::parse(written[rank]));
    std::string manifest_sha256;
    on_all_ranks(group, [&] {
      manifest_sha256 = writer.finish();
      return std::string();
    });
    on_all_ranks(group, [] { return std::string(); });  // the others' files have their names
    on_all_ranks(group, [&] {
      sync_folder(temporary.string());
      put_in_place(folder, name, temporary, manifest_sha256, born_in);
      return std::string();
    });
  });
  remove_old(folder, name, parts.keep);
}

// The same calls on the other ranks.
void follow_save(ProcessGroup& group, const CheckpointParts& parts) {
  const auto nothing = [] { return std::string(); };
  const ordered_json plan = ordered_json::parse(on_all_ranks(group, nothing).front());
  std::optional<Writer> writer;
  on_all_ranks(group, [&] {
    writer.emplace(plan.at("temporary").get<std::string>(), plan.at("born_in").get<std::string>(), /*makes_folder=*/false);
    const std::vector<optim::StatePart> state = parts.optimizer->state_parts();
    writer->write(shard_name(group.rank(), group.world_size()), shard_of(state, group.rank()), shard_metadata(state));
    return writer->written().dump();
  });
  on_all_ranks(group, nothing);  // the folder is there
  on_all_ranks(group, [&] {
    writer->give_names();
    return std::string();
  });
  on_all_ranks(group, nothing);
}

// Collective, for an optimizer whose state lies in slices on all ranks. Rank 0 holds the folder's lock throughout.
std::string save_together(ProcessGroup& group, const fs::path& folder, const CheckpointParts& parts, const std::vector<NamedTensor>& hook) {
  if (group.rank() != 0) {
    follow_save(group, parts);
    return "";
  }
  std::string name;
  bool told = false;  // the others, of anything
  try {
    in_own_folder(folder, [&] {
      name = free_name(folder, parts.step);
      lead_save(group, folder, name, parts, hook, told);
    });
  } catch (const std::exception& error) {
    if (!told) on_all_ranks(group, [&]() -> std::string { throw FileError("{}", error.what()); });
    throw;
  }
  return (folder / name).string();
}

}  // namespace

std::string save_checkpoint(const std::string& folder, const CheckpointParts& parts) {
  if (folder.empty()) throw InvalidArgument("save_checkpoint: the folder's name is empty");
  const auto group = group_or_default(parts.group);
  check_group_of_slices("save_checkpoint", parts, group.get());
  check_replicas(parts.model, "save_checkpoint");
  const std::vector<NamedTensor> hook = gather_hook_state(parts.ddp ? parts.ddp->comm_hook() : CommHook(), group.get());
  if (parts.optimizer && parts.optimizer->slice_ranks() > 1) return save_together(*group, folder, parts, hook);
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
