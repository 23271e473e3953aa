// The files of a pretrained model: one safetensors file, or several that an index names, mapped into memory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "src/data/formats/mapped_file.h"
#include "src/train/files/safetensors.h"

namespace lockstep::models {

// The files of a folder. The first one is read if it has both; transformers does the same.
inline constexpr const char *kModelName = "model.safetensors", *kIndexName = "model.safetensors.index.json";

struct PretrainedFile {
  std::shared_ptr<const data::MappedFile> file;
  train::SavedTensors saved;  // views of the file, sorted by their place in it
};

struct PretrainedFiles {
  std::vector<PretrainedFile> shards;
  std::string config;  // the text of config.json; empty: there is none
  std::string config_path;
};

// Throws FileError as load_pretrained() does.
PretrainedFiles open_pretrained(const std::string& path);

// A tensor in the file's memory, which it keeps mapped; a copy if its place is not aligned for its type.
Tensor tensor_in(const PretrainedFile& shard, const train::SavedTensor& saved);

}  // namespace lockstep::models
