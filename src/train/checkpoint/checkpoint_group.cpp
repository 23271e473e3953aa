#include "src/train/checkpoint/checkpoint_group.h"

#include <nlohmann/json.hpp>

#include "lockstep/comm/agreement.h"
#include "lockstep/core/error.h"
#include "src/ddp/wrapper/agreed_options.h"

namespace lockstep::checkpoint {

namespace {

using nlohmann::json;

constexpr const char* kSaveCall = "save_checkpoint";

std::string refusal_of_slices(const CheckpointParts& parts, const CallGroup& group) {
  const int ranks = parts.optimizer ? parts.optimizer->slice_ranks() : 1;
  if (ranks == 1 || group.world_size() == ranks) return "";
  return fmt::format("the state of {} lies in slices on {} ranks, and this call has a group of {}: give .group",
                     parts.optimizer->kind(), ranks, group.world_size());
}

std::string refusal_of_save(const CallGroup& group, const std::string& folder, const CheckpointParts& parts) {
  if (folder.empty()) return "the folder's name is empty";
  if (parts.step < 0) return fmt::format("step {} is negative: it counts the steps that are done", parts.step);
  if (parts.epoch < 0) return fmt::format("epoch {} is negative: it counts the epochs that are done", parts.epoch);
  if (parts.keep < 1) return fmt::format("keep {} is below 1: the new checkpoint stays", parts.keep);
  return group.refusal();
}

const char* parts_word(bool has) { return has ? "a" : "no"; }

json line_of(const CallGroup& group, const CheckpointParts& parts, const std::string& refusal, std::size_t own_bytes) {
  const RandomState random = parts.random.value_or(random_state());
  return {{"refusal", refusal},
          {"step", parts.step},
          {"epoch", parts.epoch},
          {"random", {random.seed, random.next_stream, random.next_dropout}},
          {"own_bytes", group.rank() == 0 ? 0 : own_bytes},
          {"has_ddp", static_cast<bool>(parts.ddp)}};
}

// Throws where this rank's line does not go with rank 0's.
void check_line(const json& theirs, const json& first, std::size_t rank) {
  for (const char* what : {"step", "epoch"})
    if (theirs.at(what) != first.at(what))
      throw MismatchError("{}: rank {} is at {} {}, rank 0 at {}: the ranks are not in lockstep", kSaveCall, rank, what,
                          theirs.at(what).get<std::int64_t>(), first.at(what).get<std::int64_t>());
  if (theirs.at("has_ddp") != first.at("has_ddp"))
    throw MismatchError("{}: rank {} gave {} .ddp, rank 0 {}: give all ranks the same parts", kSaveCall, rank,
                        parts_word(theirs.at("has_ddp")), parts_word(first.at("has_ddp")));
}

}  // namespace

CallGroup::CallGroup(const CheckpointParts& parts) : kept_(parts.group) {
  if (!kept_ && !parts.ddp) kept_ = default_process_group();
  group_ = kept_.get();
  if (parts.ddp && (!parts.group || !parts.group->has_ranks_of(parts.ddp->group()))) {
    if (parts.group)
      refusal_ = fmt::format(
          ".group has {} ranks, of which this is rank {}, and .ddp is of another group, of {} ranks, of which this is "
          "rank {}: leave "
          ".group "
          "out, or give the ddp's",
          parts.group->world_size(), parts.group->rank(), parts.ddp->group().world_size(), parts.ddp->group().rank());
    group_ = &parts.ddp->group();
  }
  if (refusal_.empty()) refusal_ = refusal_of_slices(parts, *this);
}

CallGroup::CallGroup(const std::shared_ptr<ProcessGroup>& given)
    : kept_(given ? given : default_process_group()), group_(kept_.get()) {}

void refuse_together(const CallGroup& group, const char* operation, const std::string& refusal) {
  refuse_on_all_ranks(group.get(), operation, refusal);
}

SaveFacts agree_on_save(const CallGroup& group, const std::string& folder, const CheckpointParts& parts,
                        std::size_t own_bytes) {
  const std::string refusal = refusal_of_save(group, folder, parts);
  if (!group.has_several()) {
    refuse_together(group, kSaveCall, refusal);
    return {{parts.random.value_or(random_state())}, {0}};
  }
  const std::string mine = line_of(group, parts, refusal, own_bytes).dump(-1, ' ', true);
  std::vector<json> all;
  for (const std::string& text : group.get()->all_gather_text(mine, {.purpose = {"checkpoint"}}))
    all.push_back(json::parse(text));
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (const auto why = all[rank].at("refusal").get<std::string>(); !why.empty())
      throw InvalidArgument("{}: rank {}: {}", kSaveCall, rank, why);
  SaveFacts facts;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    check_line(all[rank], all[0], rank);
    const json& random = all[rank].at("random");
    facts.random.push_back({random.at(0), random.at(1), random.at(2)});
    facts.own_bytes.push_back(all[rank].at("own_bytes"));
  }
  return facts;
}

}  // namespace lockstep::checkpoint
