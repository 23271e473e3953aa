// The ranks that a checkpoint's call is about, and what they say to each other before it begins.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/random.h"
#include "lockstep/train/checkpoint.h"

namespace lockstep::checkpoint {

// The one rule for the group of a call: .group; without it .ddp's; without both the default group; none: a job of one
// (null).
class CallGroup {
 public:
  explicit CallGroup(const CheckpointParts& parts);
  explicit CallGroup(const std::shared_ptr<ProcessGroup>& given);

  ProcessGroup* get() const { return group_; }
  bool has_several() const { return group_ != nullptr && group_->world_size() > 1; }
  int rank() const { return group_ == nullptr ? 0 : group_->rank(); }
  int world_size() const { return group_ == nullptr ? 1 : group_->world_size(); }
  // "", or why the parts do not go with it: .group and .ddp of different ranks; slices of an optimizer's state on other
  // ranks. Of the first, the group is .ddp's, over which the other ranks come to know.
  const std::string& refusal() const { return refusal_; }

 private:
  std::shared_ptr<ProcessGroup> kept_;
  ProcessGroup* group_ = nullptr;
  std::string refusal_;
};

// Collective: InvalidArgument on all ranks where one has a refusal.
void refuse_together(const CallGroup& group, const char* operation, const std::string& refusal);

// What each rank brings to a save, by rank.
struct SaveFacts {
  std::vector<RandomState> random;
  std::vector<std::size_t> own_bytes;  // of what is each rank's own; 0 for rank 0, whose own is in the other files
};
// Collective. InvalidArgument on all ranks for parts that cannot be saved, MismatchError where ranks are at different
// steps or epochs.
SaveFacts agree_on_save(const CallGroup& group, const std::string& folder, const CheckpointParts& parts,
                        std::size_t own_bytes);

}  // namespace lockstep::checkpoint
