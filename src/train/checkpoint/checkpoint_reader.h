// How a checkpoint is found, read and verified. Nothing here compares it with a model.
#pragma once

#include <cstddef>
#include <filesystem>
#include <list>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "src/train/checkpoint/checkpoint_format.h"
#include "src/train/files/durable_file.h"
#include "src/train/files/safetensors.h"

namespace lockstep::train::checkpoint {

struct LoadedCheckpoint {
  std::string folder;
  bool is_by_own_folder = false;     // the caller named this checkpoint, not the folder that holds it
  std::vector<std::string> damaged;  // names of newer checkpoints in the folder that were skipped
  Origin origin;
  nlohmann::json state;
  std::map<std::string, ReadFile> files;
  std::vector<SavedTensor> model, optimizer, averages, hook, program;  // views of `files` or `memory`
  std::list<std::vector<std::byte>> memory;                            // tensors that were joined from several files
};

// Reads the checkpoint that `folder` means: `folder` itself if it is a checkpoint; otherwise the one that its `latest`
// names. If that one or `latest` is damaged or missing, takes the newest of the others that is intact and of the same
// training, and logs a warning for each damage; `operation` begins it.
//
// Nullopt if there is no checkpoint: `why_none` then says what is there instead. Throws FileError with all damages if
// none is intact; and for a checkpoint that is too large for the memory, or of another format or layout, which is not
// skipped.
std::optional<LoadedCheckpoint> read_newest(const char* operation, const std::filesystem::path& folder,
                                            std::string& why_none);

// For messages: the newest checkpoint in the folder whose files have their sizes, or "". Does not throw.
std::string newest_with_all_files(const std::filesystem::path& folder) noexcept;

}  // namespace lockstep::train::checkpoint
