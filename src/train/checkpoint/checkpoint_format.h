// The format of a checkpoint: the names of its files, their metadata, its manifest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "src/train/checkpoint/folder/job.h"
#include "src/train/files/safetensors.h"

namespace lockstep::train::checkpoint {

inline constexpr int kFormat = 1;

// -- names

inline constexpr const char* kModel = "model.safetensors";
inline constexpr const char* kOptimizer = "optimizer.safetensors";
inline constexpr const char* kAverages = "averages.safetensors";
inline constexpr const char* kHook = "comm_hook.safetensors";
inline constexpr const char* kProgram = "program.safetensors";
inline constexpr const char* kState = "state.json";
inline constexpr const char* kManifest = "manifest.json";
inline constexpr const char* kLatest = "latest";
inline constexpr const char* kNextLatest = "writing-latest";  // becomes kLatest

// The folder of a checkpoint: "step-00000120", or "step-00000120.1" if a run has repeated that step.
std::string folder_name(std::int64_t step, int again = 0);
bool is_folder_name(std::string_view name);
// The step in such a name; 0 if the number is too large for a step.
std::int64_t step_of_folder(std::string_view name);

// The folder that becomes the checkpoint `name` when it is complete.
std::string temporary_name(const std::string& name);
bool is_temporary_name(std::string_view name);

// optimizer-00002-of-00004.safetensors: rank 1's slices of the optimizer's state.
std::string shard_name(int rank, int ranks);
bool is_shard_name(std::string_view name);

// rank-00002-of-00004.safetensors: rank 1's own tensors (rank_state.h).
std::string rank_name(int rank, int ranks);
bool is_rank_name(std::string_view name);

// -- files of tensors

// The metadata of each safetensors file. A file with other metadata does not load.
const std::map<std::string, std::string>& metadata();

// Finds tensors by name. The tensors must outlive it.
class SavedByName {
 public:
  explicit SavedByName(const std::vector<SavedTensor>& saved) {
    for (const SavedTensor& tensor : saved) by_name_.emplace(tensor.name, &tensor);
  }
  // Null if there is no tensor of that name.
  const SavedTensor* find(std::string_view name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : found->second;
  }

 private:
  std::unordered_map<std::string_view, const SavedTensor*> by_name_;
};

// Throws FileError for another format, or another layout of weights.
SavedTensors parse_file(std::span<const std::byte> file, const std::string& path);

// -- manifest

// A manifest's entries besides its list of files. A manifest that an older version wrote, or that cannot be read, gives
// the defaults.
struct Origin {
  Job job;                    // the job that wrote it
  std::string lineage;        // the id of the first of the jobs that continued from each other in this folder
  std::int64_t sequence = 0;  // counts the saves of all jobs in this folder: the order of the checkpoints
  std::int64_t step = 0;
  std::int64_t saved_at = 0;  // seconds since 1970, by the clock of the machine that saved
};
Origin origin_of(const nlohmann::json& manifest);

// The time now, as manifests have it.
std::int64_t seconds_since_1970();

// Is it the folder of one checkpoint? A manifest alone is not enough, because other programs have files of that name.
bool is_checkpoint(const std::filesystem::path& folder);

}  // namespace lockstep::train::checkpoint
