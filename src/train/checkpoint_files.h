// The names within a checkpoint, and what a checkpoint says about itself.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/train/checkpoint.h"

namespace lockstep::checkpoint {

inline constexpr const char* kModel = "model.safetensors";
inline constexpr const char* kOptimizer = "optimizer.safetensors";
inline constexpr const char* kState = "state.json";
inline constexpr const char* kManifest = "manifest.json";
inline constexpr const char* kLatest = "latest";
inline constexpr const char* kTemporaryPrefix = "writing-";  // a folder that is not whole
inline constexpr const char* kFolderPrefix = "step-";
inline constexpr int kFormat = 1;

// Parameters and buffers under the bare model's names.
inline std::vector<NamedTensor> model_tensors(const nn::Module& model) {
  std::vector<NamedTensor> tensors = model.named_parameters();
  for (NamedTensor& buffer : model.named_buffers()) tensors.push_back(std::move(buffer));
  return tensors;
}

// The group that a call is about; null for a job of one.
inline std::shared_ptr<ProcessGroup> group_of(const CheckpointParts& parts) { return parts.group ? parts.group : default_process_group(); }

}  // namespace lockstep::checkpoint
