// The names within a checkpoint, and what a checkpoint says about itself.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <cstdint>
#include <map>
#include <memory>
#include <regex>
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
inline constexpr const char* kNextLatest = "writing-latest";  // becomes kLatest

// A checkpoint's folder: "step-00000120"; "step-00000120.1" when a run went over that step again.
inline std::string folder_name(std::int64_t step, int again = 0) {
  return again == 0 ? fmt::format("step-{:08}", step) : fmt::format("step-{:08}.{}", step, again);
}
inline constexpr const char* kFolderForm = "step-[0-9]{8,}(?:\\.[0-9]+)?";

// The folder that becomes the checkpoint `name` once it is whole.
inline std::string temporary_name(const std::string& name) { return fmt::format("writing-{}-{}", name, getpid()); }
inline bool is_folder_name(const std::string& name) {
  static const std::regex kForm(kFolderForm);
  return std::regex_match(name, kForm);
}
inline bool is_temporary_name(const std::string& name) {
  static const std::regex kForm(std::string("writing-") + kFolderForm + "-[0-9]+");
  return name == kNextLatest || std::regex_match(name, kForm);
}

inline constexpr int kFormat = 1;

// What both safetensors files say of themselves; a file that says anything else does not load.
inline const std::map<std::string, std::string>& metadata() {
  static const std::map<std::string, std::string> kMetadata = {
      {"format", "lockstep"}, {"version", "1"}, {"convolution_weights", "OHWI"}, {"linear_weights", "OI"}, {"flatten", "HWC"}};
  return kMetadata;
}

// Parameters and buffers under the bare model's names.
inline std::vector<NamedTensor> model_tensors(const nn::Module& model) {
  std::vector<NamedTensor> tensors = model.named_parameters();
  for (NamedTensor& buffer : model.named_buffers()) tensors.push_back(std::move(buffer));
  return tensors;
}

// The group that a call is about; null for a job of one.
inline std::shared_ptr<ProcessGroup> group_or_default(const std::shared_ptr<ProcessGroup>& group) {
  return group ? group : default_process_group();
}

}  // namespace lockstep::checkpoint
