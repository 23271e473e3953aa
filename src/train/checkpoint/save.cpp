#include <filesystem>
#include <functional>
#include <list>
#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/comm/agreement.h"
#include "lockstep/core/error.h"
#include "lockstep/core/version.h"
#include "src/core/base/error_of_peer.h"
#include "src/ddp/checks/replica_check.h"
#include "src/optim/swapped_weights.h"
#include "src/train/checkpoint/checkpoint_group.h"
#include "src/train/checkpoint/files.h"
#include "src/train/checkpoint/folder.h"
#include "src/train/checkpoint/hook_state.h"
#include "src/train/checkpoint/own.h"
#include "src/train/checkpoint/random.h"
#include "src/train/checkpoint/shards.h"
#include "src/train/files/durable_file.h"
#include "src/train/files/safetensors.h"

namespace lockstep {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

namespace {

using namespace checkpoint;

constexpr const char *kSave = "save_checkpoint", *kPrepare = "prepare_checkpoint_folder";

// What the ranks have brought to rank 0; elsewhere it is empty.
struct Gathered {
  SaveFacts facts;
  std::vector<NamedTensor> hook;            // a comm hook's state
  std::vector<std::vector<std::byte>> own;  // by rank: the files of what is each rank's own
};

ordered_json describe_state(const CheckpointParts& parts, const SaveFacts& facts) {
  ordered_json state = {{"format", kFormat},
                        {"lockstep", LOCKSTEP_VERSION},
                        {"step", parts.step},
                        {"epoch", parts.epoch},
                        {"world_size", facts.random.size()}};
  add_random(state, facts.random);
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
    throw InvalidArgument("save_checkpoint: a text of the state, that of .program perhaps, is no UTF-8: {}",
                          error.what());
  }
}

// The files of one checkpoint, in the folder that becomes it. Where files need no name, the folder is made when all are
// on the disk: a process that is killed before leaves nothing.
class Writer {
 public:
  // `born_in`: where files without a name are made; empty: they have their names from the start.
  Writer(const fs::path& temporary, const std::string& born_in, bool makes_folder = true)
      : temporary_(temporary), born_in_(born_in) {
    if (born_in_.empty() && makes_folder) fs::create_directory(temporary_);
  }

  void write(const std::string& name, const std::vector<NamedTensor>& tensors,
             const std::map<std::string, std::string>& more = {}) {
    DurableFile& file = add(name);
    std::map<std::string, std::string> all = metadata();
    all.insert(more.begin(), more.end());
    write_safetensors(file, tensors, all);
    note(name, file.finish());
  }
  void write(const std::string& name, std::span<const std::byte> bytes) {
    DurableFile& file = add(name);
    file.write(bytes);
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
  std::string finish(const Origin& origin) {
    DurableFile& file = add(kManifest);
    file.write(ordered_json{{"format", kFormat},
                            {"step", origin.step},
                            {"sequence", origin.sequence},
                            {"lineage", origin.lineage},
                            {"job", nlohmann::json(origin.job)},
                            {"files", written_}}
                   .dump(1, ' ', /*ensure_ascii=*/true) +
               "\n");
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
  void note(const std::string& name, const WrittenFile& file) {
    written_[name] = {{"bytes", file.bytes}, {"sha256", file.sha256}};
  }

  fs::path temporary_;
  std::string born_in_;
  std::list<DurableFile> files_;
  ordered_json written_;
};

void move_latest(const fs::path& folder, const std::string& name, const std::string& manifest_sha256,
                 const std::string& born_in) {
  const fs::path next = folder / kNextLatest;
  DurableFile file(next.string(), born_in);
  file.write(name + " " + manifest_sha256 + "\n");
  file.finish();
  if (!born_in.empty()) file.give_name();
  rename_file(next.string(), (folder / kLatest).string());
  sync_folder(folder.string());
}

void write_all_but_slices(Writer& writer, const CheckpointParts& parts, const Gathered& gathered) {
  writer.write(
      kModel,
      optim::with_weights(parts.model.state_dict()));  // while the parameters hold averages, their weights all the same
  if (parts.optimizer && parts.optimizer->slice_ranks() == 1) writer.write(kOptimizer, parts.optimizer->state());
  if (parts.ema) writer.write(kAverages, parts.ema->state());
  if (!gathered.hook.empty()) writer.write(kHook, gathered.hook);
  for (std::size_t rank = 1; rank < gathered.own.size(); ++rank)
    writer.write(rank_name(static_cast<int>(rank), static_cast<int>(gathered.own.size())), gathered.own[rank]);
  if (parts.program && !parts.program->tensors.empty()) writer.write(kProgram, parts.program->tensors);
  writer.write(kState, text_of(describe_state(parts, gathered.facts)));
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

void put_in_place(const fs::path& folder, const std::string& name, const fs::path& temporary,
                  const std::string& manifest_sha256, const std::string& born_in) {
  rename_file(temporary.string(), (folder / name).string());
  sync_folder(folder.string());
  move_latest(folder, name, manifest_sha256, born_in);
}

// A checkpoint that is about to be written, by rank 0.
struct Target {
  const fs::path& folder;
  std::string name;
  Origin origin;
};

// Runs `write`, on rank 0, in the folder that is this job's then; returns the path of the checkpoint that it has
// written.
std::string write_in_own_folder(const fs::path& folder, const CheckpointParts& parts,
                                const std::function<void(const Target&)>& write) {
  std::string name;
  in_own_folder(folder, parts.overwrite, [&](const FolderUse& use) {
    use.check_newest(parts.overwrite);
    name = free_name(folder, parts.step);
    write({folder, name, {this_job(), use.lineage(), next_sequence(folder), parts.step}});
    use.saved();
    remove_old(folder, name, parts.keep);
  });
  return (folder / name).string();
}

void write_checkpoint(const Target& target, const CheckpointParts& parts, const Gathered& gathered) {
  in_temporary(target.folder, target.name, [&](const fs::path& temporary, const std::string& born_in) {
    Writer writer(temporary, born_in);
    write_all_but_slices(writer, parts, gathered);
    put_in_place(target.folder, target.name, temporary, writer.finish(target.origin), born_in);
  });
}

// Calls `act` on this rank and returns what it returned on each rank; where it threw on one, FileError on all, with the
// first one's text.
std::vector<std::string> on_all_ranks(ProcessGroup& group, const char* operation,
                                      const std::function<std::string()>& act) {
  std::string outcome;
  try {
    outcome = "+" + act();
  } catch (const std::exception& error) {
    outcome = fmt::format("-{}", error.what());
  }
  std::vector<std::string> outcomes = group.all_gather_text(outcome, {.purpose = {"checkpoint"}});
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    if (outcomes[rank][0] == '-') {
      const std::string why = fmt::format(
          "{}: rank {}: {}{}", operation, rank, outcomes[rank].substr(1),
          rank == 0 ? "" : ": each rank writes its slices of the optimizer's state: name a folder that all ranks see");
      if (outcome[0] == '-') throw FileError("{}", why);
      throw FileErrorOfPeer("{}", why);
    }
    outcomes[rank].erase(0, 1);
  }
  return outcomes;
}
std::vector<std::string> save_on_all_ranks(ProcessGroup& group, const std::function<std::string()>& act) {
  return on_all_ranks(group, kSave, act);
}

// Rank 0's part of a save in which each rank writes its slices: everything else, and what makes it a checkpoint.
// Returns when all are done.
void lead_save(ProcessGroup& group, const Target& target, const CheckpointParts& parts, const Gathered& gathered,
               bool& told) {
  in_temporary(target.folder, target.name, [&](const fs::path& temporary, const std::string& born_in) {
    Writer writer(temporary, born_in);
    told = true;
    save_on_all_ranks(group, [&] {
      return ordered_json{{"temporary", temporary.string()}, {"born_in", born_in}}.dump();
    });
    const std::vector<optim::StatePart> state = parts.optimizer->state_parts();
    const std::vector<std::string> written = save_on_all_ranks(group, [&] {
      writer.write(shard_name(0, group.world_size()), shard_of(state, 0), shard_metadata(state));
      write_all_but_slices(writer, parts, gathered);
      return std::string();
    });
    for (std::size_t rank = 1; rank < written.size(); ++rank) writer.add_written(ordered_json::parse(written[rank]));
    std::string manifest_sha256;
    save_on_all_ranks(group, [&] {
      manifest_sha256 = writer.finish(target.origin);
      return std::string();
    });
    save_on_all_ranks(group, [] { return std::string(); });  // the others' files have their names
    save_on_all_ranks(group, [&] {
      sync_folder(temporary.string());
      put_in_place(target.folder, target.name, temporary, manifest_sha256, born_in);
      return std::string();
    });
  });
}

// The same calls on the other ranks.
void follow_save(ProcessGroup& group, const CheckpointParts& parts) {
  const auto nothing = [] { return std::string(); };
  const ordered_json plan = ordered_json::parse(save_on_all_ranks(group, nothing).front());
  std::optional<Writer> writer;
  save_on_all_ranks(group, [&] {
    writer.emplace(plan.at("temporary").get<std::string>(), plan.at("born_in").get<std::string>(),
                   /*makes_folder=*/false);
    const std::vector<optim::StatePart> state = parts.optimizer->state_parts();
    writer->write(shard_name(group.rank(), group.world_size()), shard_of(state, group.rank()), shard_metadata(state));
    return writer->written().dump();
  });
  save_on_all_ranks(group, nothing);  // the folder is there
  save_on_all_ranks(group, [&] {
    writer->give_names();
    return std::string();
  });
  save_on_all_ranks(group, nothing);
}

// Collective, for an optimizer whose state lies in slices on all ranks. Rank 0 holds the folder's lock throughout.
std::string save_together(ProcessGroup& group, const fs::path& folder, const CheckpointParts& parts,
                          const Gathered& gathered) {
  if (group.rank() != 0) {
    follow_save(group, parts);
    return "";
  }
  bool told = false;  // the others, of anything
  try {
    return write_in_own_folder(folder, parts,
                               [&](const Target& target) { lead_save(group, target, parts, gathered, told); });
  } catch (const std::exception& error) {
    if (!told) save_on_all_ranks(group, [&]() -> std::string { throw FileError("{}", error.what()); });
    throw;
  }
}

}  // namespace

std::string save_checkpoint(const std::string& folder, const CheckpointParts& parts) {
  const CallGroup group(parts);
  const OwnTensors own_tensors(parts);
  const std::vector<std::byte> own = own_file(own_tensors, group.rank());
  Gathered gathered{.facts = agree_on_save(group, folder, parts, own.size()), .hook = {}, .own = {}};
  check_replicas(parts.model, group.get(), kSave);
  gathered.hook = gather_hook_state(parts.ddp ? parts.ddp->comm_hook() : CommHook(), group.get());
  gathered.own = gather_own(group, gathered.facts, own);
  const fs::path path(folder);
  if (parts.optimizer && parts.optimizer->slice_ranks() > 1) return save_together(*group.get(), path, parts, gathered);
  const auto write = [&] {
    return write_in_own_folder(path, parts, [&](const Target& target) { write_checkpoint(target, parts, gathered); });
  };
  if (!group.has_several()) return write();
  const auto written = save_on_all_ranks(*group.get(), [&] { return group.rank() == 0 ? write() : std::string(); });
  return group.rank() == 0 ? written.front() : "";
}

void prepare_checkpoint_folder(const std::string& folder, const std::shared_ptr<ProcessGroup>& given, bool overwrite) {
  const CallGroup group(given);
  refuse_together(group, kPrepare, folder.empty() ? "the folder's name is empty" : "");
  const fs::path path(folder);
  const auto prepare = [&] {
    in_own_folder(path, overwrite, [&](const FolderUse&) {
      write_durably((path / kNextLatest).string(), "\n");
      remove_quietly(path / kNextLatest);
    });
    return std::string();
  };
  if (group.has_several())
    on_all_ranks(*group.get(), kPrepare, [&] { return group.rank() == 0 ? prepare() : std::string(); });
  else
    prepare();
}

}  // namespace lockstep
