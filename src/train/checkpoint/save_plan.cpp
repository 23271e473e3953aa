// The plan of a save: what the ranks compare and bring to rank 0, and which rank writes which files.
#include <nlohmann/json.hpp>
#include <string_view>

#include "lockstep/core/error.h"
#include "lockstep/core/version.h"
#include "lockstep/tensor/random.h"
#include "src/ddp/checks/replica_check.h"
#include "src/optim/swapped_weights.h"
#include "src/train/checkpoint/checkpoint_format.h"
#include "src/train/checkpoint/checkpoint_plan.h"
#include "src/train/checkpoint/rank_state.h"
#include "src/train/checkpoint/slice_files.h"
#include "src/train/files/safetensors.h"

namespace lockstep::train::checkpoint {

using nlohmann::json;
using nlohmann::ordered_json;

namespace {

constexpr const char* kSave = "save_checkpoint";

int slice_holders(const CheckpointParts& parts) { return parts.optimizer ? parts.optimizer->slice_holders() : 1; }

std::string refusal_of_save(const CallGroup& group, const std::string& folder, const CheckpointParts& parts,
                            const SaveOptions& options) {
  if (folder.empty()) return "the folder's name is empty";
  if (parts.step < 0) return fmt::format("step {} is negative: it counts the steps that are done", parts.step);
  if (parts.epoch < 0) return fmt::format("epoch {} is negative: it counts the epochs that are done", parts.epoch);
  if (parts.keep < 1) return fmt::format("keep {} is below 1: the new checkpoint stays", parts.keep);
  if (options.keep_for.count() < 0)
    return fmt::format("keep_for {} s is negative: it is an age", options.keep_for.count());
  return group.refusal();
}

// -- what the ranks compare and bring to rank 0

// The state of the other ranks that rank 0 writes. Rank 0 has all of it, the others have only `random` and `own_bytes`.
struct Gathered {
  std::vector<RandomState> random;          // by rank
  std::vector<std::size_t> own_bytes;       // by rank: the size of its file of own tensors; 0 for rank 0
  std::vector<std::vector<std::byte>> own;  // by rank: these files
  std::vector<NamedTensor> hook;            // a comm hook's state
};

json description_of_rank(const CheckpointParts& parts, const SaveOptions& options, std::size_t own_bytes) {
  const RandomState random = parts.random.value_or(random_state());
  return {{"step", parts.step},
          {"epoch", parts.epoch},
          {"random", {random.seed, random.next_stream, random.next_dropout}},
          {"own_bytes", own_bytes},
          {"slice_holders", slice_holders(parts)},
          {"has_ddp", static_cast<bool>(parts.ddp)},
          {"background", options.background},
          {"stops", options.on_error == OnSaveError::kStop}};
}

// Throws if this rank's description does not fit rank 0's.
void check_description(const json& theirs, const json& first, std::size_t rank) {
  for (const char* what : {"step", "epoch"})
    if (theirs.at(what) != first.at(what))
      throw MismatchError("{}: rank {} is at {} {}, rank 0 at {}: the ranks are not in lockstep", kSave, rank, what,
                          theirs.at(what).get<std::int64_t>(), first.at(what).get<std::int64_t>());
  const auto word = [](const json& has) { return has.get<bool>() ? "a" : "no"; };
  if (theirs.at("has_ddp") != first.at("has_ddp"))
    throw MismatchError("{}: rank {} gave {} .ddp, rank 0 {}: give all ranks the same parts", kSave, rank,
                        word(theirs.at("has_ddp")), word(first.at("has_ddp")));
  if (theirs.at("slice_holders") != first.at("slice_holders"))
    throw MismatchError(
        "{}: rank {} has the optimizer's state in slices on {} ranks, rank 0 on {}: give all ranks "
        "the same parts",
        kSave, rank, theirs.at("slice_holders").get<int>(), first.at("slice_holders").get<int>());
  for (const char* option : {"background", "stops"})
    if (theirs.at(option) != first.at(option))
      throw MismatchError("{}: rank {} gave other SaveOptions than rank 0: give all ranks the same .{}", kSave, rank,
                          std::string_view(option) == "stops" ? "on_error" : option);
}

Gathered gather_state(const CallGroup& group, const CheckpointParts& parts, const SaveOptions& options) {
  std::vector<std::byte> own;
  const Results texts =
      gather_on_all_ranks(group,
                          [&] {
                            own = own_file(OwnTensors(parts), group.rank());
                            return description_of_rank(parts, options, own.size()).dump(-1, ' ', /*ensure_ascii=*/true);
                          },
                          {"state to save"});
  const json first = json::parse(texts.front());
  Gathered gathered;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    const json description = json::parse(texts[rank]);
    check_description(description, first, rank);
    const json& random = description.at("random");
    gathered.random.push_back({random.at(0), random.at(1), random.at(2)});
    gathered.own_bytes.push_back(description.at("own_bytes"));
  }
  check_replicas(parts.model, group.get(), kSave);
  gathered.hook = gather_hook_state(parts.ddp ? parts.ddp->comm_hook() : CommHook(), group.get());
  gathered.own = gather_own(group, gathered.own_bytes, own);
  return gathered;
}

// -- state.json

ordered_json describe_state(const CheckpointParts& parts, const std::vector<RandomState>& random) {
  ordered_json state = {{"format", kFormat},
                        {"lockstep", LOCKSTEP_VERSION},
                        {"step", parts.step},
                        {"epoch", parts.epoch},
                        {"world_size", random.size()}};
  add_random(state, random);
  if (parts.optimizer) state["optimizer"] = {{"kind", parts.optimizer->kind()}, {"lr", parts.optimizer->lr()}};
  if (parts.loader)
    state["sampler"] = json(parts.loader->state());
  else if (parts.sampler)
    state["sampler"] = json(parts.sampler->state());
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
    throw InvalidArgument("{}: a text of the state, that of .program perhaps, is not UTF-8: {}", kSave, error.what());
  }
}

// -- the files

std::map<std::string, std::string> metadata_with(const std::map<std::string, std::string>& more) {
  std::map<std::string, std::string> all = metadata();
  all.insert(more.begin(), more.end());
  return all;
}

FileContent content_of(std::vector<NamedTensor> tensors, const std::map<std::string, std::string>& more = {}) {
  return {.tensors = std::move(tensors), .metadata = metadata_with(more)};
}

PlannedFile shard_file(const CallGroup& group, const CheckpointParts& parts) {
  const int rank = group.rank();
  return {shard_name(rank, group.world_size()), [&parts, rank] {
            const std::vector<optim::StatePart> state = parts.optimizer->state_parts();
            return content_of(shard_of(state, rank), shard_metadata(state));
          }};
}

// All files but the slices and the manifest.
std::vector<PlannedFile> files_of_rank_zero(const CheckpointParts& parts, Gathered gathered) {
  std::vector<PlannedFile> files;
  const auto add = [&files](const std::string& name, auto content) { files.push_back({name, std::move(content)}); };
  // The weights, also while the parameters hold averages.
  add(kModel, [&parts] { return content_of(optim::with_weights(parts.model.state_dict())); });
  if (parts.optimizer && slice_holders(parts) == 1)
    add(kOptimizer, [&parts] { return content_of(parts.optimizer->state()); });
  if (parts.ema) add(kAverages, [&parts] { return content_of(parts.ema->state()); });
  if (!gathered.hook.empty())
    add(kHook, [hook = std::move(gathered.hook)] {
      FileContent content = content_of(hook);
      content.is_copy = true;
      return content;
    });
  for (std::size_t rank = 1; rank < gathered.own.size(); ++rank)
    add(rank_name(static_cast<int>(rank), static_cast<int>(gathered.own.size())),
        [own = std::make_shared<std::vector<std::byte>>(std::move(gathered.own[rank]))] {
          return FileContent{.bytes = own};
        });
  if (parts.program && !parts.program->tensors.empty())
    add(kProgram, [&parts] { return content_of(parts.program->tensors); });
  add(kState,
      [&parts, random = gathered.random] { return FileContent{.text = text_of(describe_state(parts, random))}; });
  return files;
}

}  // namespace

void FileContent::write(DurableFile& file) const {
  if (bytes)
    file.write(*bytes);
  else if (!text.empty())
    file.write(text);
  else
    write_safetensors(file, tensors, metadata);
}

SavePlan plan_save(const CallGroup& group, const CheckpointParts& parts, const std::string& folder,
                   const SaveOptions& options) {
  refuse_on_all_ranks(group, kSave, refusal_of_save(group, folder, parts, options));
  Gathered gathered = gather_state(group, parts, options);
  SavePlan plan{.group = group,
                .folder = folder,
                .step = parts.step,
                .keep = parts.keep,
                .keep_for = options.keep_for,
                .saved_at = seconds_since_1970(),
                .overwrite = parts.overwrite,
                .on_error = options.on_error,
                .is_sliced = slice_holders(parts) > 1,
                .files = {},
                .steps = save_steps()};
  if (plan.is_sliced) plan.files.push_back(shard_file(group, parts));
  if (group.rank() == 0)
    for (PlannedFile& file : files_of_rank_zero(parts, std::move(gathered))) plan.files.push_back(std::move(file));
  return plan;
}

}  // namespace lockstep::train::checkpoint
