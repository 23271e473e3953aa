// A checkpoint as it lies in its folder: found, read, verified and parsed, before it is compared with any model.
#pragma once

#include <cstddef>
#include <filesystem>
#include <list>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/train/checkpoint/job.h"
#include "src/train/files/durable_file.h"
#include "src/train/files/safetensors.h"

namespace lockstep::checkpoint {

struct Found {
  std::filesystem::path folder;
  std::optional<std::string> manifest_sha256;  // none: only the manifest itself says what it is
};

// Which checkpoint `folder` means: the one that its `latest` names, or, being a checkpoint's own folder, itself.
// Nullopt: none, and `why` says what is there instead.
std::optional<Found> find_checkpoint(const std::filesystem::path& folder, std::string& why);

// What a manifest says beside its files; of one that an older version wrote, or that cannot be read: the defaults.
struct Origin {
  Job job;              // that wrote it
  std::string lineage;  // the id of the first of the jobs that went on from each other's checkpoints in this folder
  std::int64_t sequence =
      0;  // of the saves in this folder, over all jobs: the order of checkpoints, whatever their files' times
  std::int64_t step = 0;
};

struct LoadedCheckpoint {
  std::string folder;
  bool is_latest = false;  // found by `latest`
  Origin origin;
  nlohmann::json state;
  std::map<std::string, ReadFile> files;
  std::vector<SavedTensor> model, optimizer, averages, hook, program;  // views of files, or of `memory`
  std::list<std::vector<std::byte>> memory;  // tensors that were put together of several files
};

Origin origin_of(const nlohmann::json& manifest);

// Throws FileError for another format, or another layout of weights.
SavedTensors parse_file(std::span<const std::byte> file, const std::string& path);

// Throws FileError with file and reason for all that is missing, damaged, too large or of another format or layout.
LoadedCheckpoint read_checkpoint(const Found& found);

}  // namespace lockstep::checkpoint
