// Shared by the public calls, the sequence of a save and the sequence of a load.
//
// The plan of a save: which files this rank writes, and the steps that all ranks run together.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/agreement.h"
#include "lockstep/train/checkpoint.h"
#include "src/train/files/durable_file.h"

namespace lockstep::train::checkpoint {

// The group of a call: .group of the parts, else the group of .ddp, else the default group, else null (one process).
class CallGroup {
 public:
  explicit CallGroup(const CheckpointParts& parts);
  explicit CallGroup(const std::shared_ptr<ProcessGroup>& given);

  operator GroupRef() const { return group_; }  // NOLINT: implicit
  ProcessGroup* get() const { return group_.get(); }
  int rank() const { return group_.rank(); }
  int world_size() const { return group_.world_size(); }
  // "", or why the parts do not fit the group: .group and .ddp have different ranks, or the optimizer's state is sliced
  // over other ranks. In the first case the group is .ddp's, so that the other ranks can receive the refusal.
  const std::string& refusal() const { return refusal_; }

 private:
  std::shared_ptr<ProcessGroup> kept_;
  GroupRef group_ = nullptr;
  std::string refusal_;
};

// The contents of a file: `bytes`, else `text`, else tensors, which may be the training's own.
struct FileContent {
  std::vector<NamedTensor> tensors = {};
  std::map<std::string, std::string> metadata = {};  // of the tensors' file
  bool is_copy = false;                              // the training does not change these tensors
  std::shared_ptr<const std::vector<std::byte>> bytes = nullptr;
  std::string text = {};

  void write(DurableFile& file) const;
};

// A file that this rank writes. Its contents are made when it is written, or copied for the background.
struct PlannedFile {
  std::string name;
  std::function<FileContent()> content;
};

class SaveRun;                             // save.cpp
using Results = std::vector<std::string>;  // by rank

// One step of a save. If the state is sliced, all ranks are in the same step: a rank goes on when all have ended it.
// Otherwise rank 0 runs all steps alone. If a rank throws in a step, all ranks throw.
struct SaveStep {
  const char* name;  // for tests
  // This rank's part. `before` has what all ranks returned from the step before.
  std::function<std::string(SaveRun& run, const Results& before)> act;
};

struct SavePlan {
  GroupRef group;
  std::filesystem::path folder;
  std::int64_t step = 0;
  int keep = 0;
  std::chrono::seconds keep_for{0};
  std::int64_t saved_at = 0;  // seconds since 1970
  bool overwrite = false;
  OnSaveError on_error = OnSaveError::kContinue;
  bool is_sliced = false;                          // each rank writes a file; otherwise rank 0 writes all files
  std::vector<PlannedFile> files;                  // that this rank writes, in this order
  std::vector<SaveStep> steps;                     // the same on all ranks
  std::atomic<std::uint64_t>* progress = nullptr;  // unless null: grows while this rank writes
};

// Collective. Checks that the ranks save the same step, and brings to rank 0 what it writes for the others. The parts
// must outlive the plan. Throws on all ranks: InvalidArgument, MismatchError.
SavePlan plan_save(const CallGroup& group, const CheckpointParts& parts, const std::string& folder,
                   const SaveOptions& options = {});
std::vector<SaveStep> save_steps();

// Collective: runs the steps. Returns the checkpoint's folder on rank 0, and "" on the other ranks.
std::string run_save(const SavePlan& plan);

// Calls act() on all ranks and returns the results by rank. If it throws on any rank, all ranks throw FileError, or
// FolderRefusal if that rank did: "<operation>: rank R: <text>".
Results act_on_all_ranks(GroupRef group, const char* operation, const std::filesystem::path& folder,
                         const std::function<std::string()>& act);

// The description of a sampler, which must be the same on all ranks.
std::string description_of(const data::Sampler& sampler);

// Collective. Nullopt if the folder has no checkpoint: `why_none` then says what rank 0 found instead.
std::optional<CheckpointState> load(const char* operation, const std::string& folder, const CheckpointParts& parts,
                                    std::string& why_none);

}  // namespace lockstep::train::checkpoint
