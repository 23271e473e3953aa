// The public calls.
#include "lockstep/train/checkpoint.h"

#include <nlohmann/json.hpp>

#include "lockstep/core/error.h"
#include "lockstep/train/restore_sampler.h"
#include "src/core/process/progress_page.h"
#include "src/train/checkpoint/background/background_save.h"
#include "src/train/checkpoint/checkpoint_plan.h"
#include "src/train/checkpoint/failed_save.h"
#include "src/train/checkpoint/folder/checkpoint_folder.h"

namespace lockstep::train {

namespace checkpoint {

namespace {

constexpr const char* kPrepare = "prepare_checkpoint_folder";

// "", or why this rank's state is not sliced over the ranks of the group.
std::string refusal_of_slices(const CheckpointParts& parts, GroupRef group) {
  const int ranks = parts.optimizer ? parts.optimizer->slice_holders() : 1;
  if (ranks == 1 || group.world_size() == ranks) return "";
  return fmt::format("the state of {} lies in slices on {} ranks, and this call has a group of {}: give .group",
                     parts.optimizer->kind(), ranks, group.world_size());
}

}  // namespace

CallGroup::CallGroup(const CheckpointParts& parts) : kept_(parts.group) {
  if (!kept_ && !parts.ddp) kept_ = default_process_group();
  group_ = kept_;
  if (parts.ddp && (!parts.group || !parts.group->has_ranks_of(parts.ddp->group()))) {
    if (parts.group)
      refusal_ = fmt::format(
          ".group has {} ranks, of which this is rank {}, and .ddp is of another group, of {} ranks, of which this is "
          "rank {}: leave .group out, or give the ddp's",
          parts.group->world_size(), parts.group->rank(), parts.ddp->group().world_size(), parts.ddp->group().rank());
    group_ = parts.ddp->group();
  }
  if (refusal_.empty()) refusal_ = refusal_of_slices(parts, group_);
}

CallGroup::CallGroup(const std::shared_ptr<ProcessGroup>& given)
    : kept_(given ? given : default_process_group()), group_(kept_) {}

std::string description_of(const data::Sampler& sampler) {
  const data::SamplerState state = sampler.state();
  return fmt::format("a sampler of {} samples for {} ranks: {}{}", sampler.set_size(), sampler.place().world_size,
                     state.options,
                     state.fingerprint.empty() ? "" : ", of the data set with the fingerprint " + state.fingerprint);
}

}  // namespace checkpoint

using namespace checkpoint;

namespace {

// lockrun reports from which step an attempt went on.
std::optional<CheckpointState> noted(std::optional<CheckpointState> loaded) {
  if (loaded) note_resumed_step(loaded->step);
  return loaded;
}

}  // namespace

std::string save_checkpoint(const std::string& folder, const CheckpointParts& parts, const SaveOptions& options) {
  const CallGroup group(parts);
  const std::string unfinished = settle_last_save(group);
  try {
    if (!unfinished.empty()) throw FileError("{}", unfinished);
    SavePlan plan = plan_save(group, parts, folder, options);
    if (!options.background) return run_save(plan);
    save_in_background(group, std::move(plan));
  } catch (const FileError& error) {
    if (is_refusal(error) || options.on_error == OnSaveError::kStop) throw;
    if (group.rank() == 0) warn_not_saved(folder, parts.step, error.what());
  }
  return "";
}

std::string wait_for_saves(const std::shared_ptr<ProcessGroup>& given) { return await_last_save(CallGroup(given)); }

void prepare_checkpoint_folder(const std::string& folder, const std::shared_ptr<ProcessGroup>& given, bool overwrite) {
  const CallGroup group(given);
  refuse_on_all_ranks(group, kPrepare, folder.empty() ? "the folder's name is empty" : "");
  await_own_save(group);
  act_on_all_ranks(group, kPrepare, folder, [&] {
    if (group.rank() == 0) try_folder(folder, overwrite);
    return std::string();
  });
}

std::optional<CheckpointState> load_checkpoint(const std::string& folder, const CheckpointParts& parts) {
  std::string why_none;
  return noted(load("load_checkpoint", folder, parts, why_none));
}

CheckpointState resume_checkpoint(const std::string& folder, const CheckpointParts& parts) {
  std::string why_none;
  if (auto state = noted(load("resume_checkpoint", folder, parts, why_none))) return *std::move(state);
  throw FileError("resume_checkpoint: there is no checkpoint to go on from. {}", why_none);
}

void restore_sampler(data::Sampler& sampler, const data::SamplerState& state,
                     const std::shared_ptr<ProcessGroup>& wanted) {
  std::string refusal;
  try {
    sampler.check(state);
  } catch (const InvalidArgument& error) {
    refusal = error.what();
  }
  if (const auto group = wanted ? wanted : default_process_group()) {
    const auto text = [](const data::SamplerState& of) { return nlohmann::json(of).dump(-1, ' ', true); };
    check_same_on_all_ranks(*group, "restore_sampler",
                            {"the state " + text(state), checkpoint::description_of(sampler)},
                            "gave different states or samplers, no rank has taken its own: give all of them the same");
  }
  if (!refusal.empty()) throw InvalidArgument("restore_sampler: {}", refusal);
  sampler.restore(state);
}

}  // namespace lockstep::train
