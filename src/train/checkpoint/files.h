// The names within a checkpoint, and its description of itself.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/core/error.h"
#include "lockstep/train/checkpoint.h"
#include "src/core/base/digits.h"

namespace lockstep::checkpoint {

inline constexpr const char* kModel = "model.safetensors";
inline constexpr const char* kOptimizer = "optimizer.safetensors";
inline constexpr const char* kAverages = "averages.safetensors";
inline constexpr const char* kHook = "comm_hook.safetensors";
inline constexpr const char* kProgram = "program.safetensors";
inline constexpr const char* kState = "state.json";
inline constexpr const char* kManifest = "manifest.json";
inline constexpr const char* kLatest = "latest";
inline constexpr const char* kNextLatest = "writing-latest";  // becomes kLatest

// A checkpoint's folder: "step-00000120"; "step-00000120.1" when a run went over that step again.
inline std::string folder_name(std::int64_t step, int again = 0) {
  return again == 0 ? fmt::format("step-{:08}", step) : fmt::format("step-{:08}.{}", step, again);
}

// The folder that becomes the checkpoint `name` once it is whole.
inline std::string temporary_name(const std::string& name) { return fmt::format("writing-{}-{}", name, getpid()); }
inline bool is_folder_name(std::string_view name) {
  constexpr std::string_view kStep = "step-";
  if (!name.starts_with(kStep)) return false;
  name.remove_prefix(kStep.size());
  const std::size_t dot = name.find('.');
  return dot >= 8 && is_digits(name.substr(0, dot)) &&
         (dot == name.npos ? name.size() >= 8 : is_digits(name.substr(dot + 1)));
}
// Of such a name; 0 for a number that no step has.
inline std::int64_t step_of_folder(std::string_view name) {
  std::int64_t step = 0;
  const std::string_view digits = name.substr(std::string_view("step-").size());
  return std::from_chars(digits.data(), digits.data() + digits.size(), step).ec == std::errc() ? step : 0;
}
inline bool is_temporary_name(std::string_view name) {
  constexpr std::string_view kWriting = "writing-";
  const std::size_t dash = name.rfind('-');
  return name == kNextLatest ||
         (name.starts_with(kWriting) && dash > kWriting.size() && is_digits(name.substr(dash + 1)) &&
          is_folder_name(name.substr(kWriting.size(), dash - kWriting.size())));
}

inline constexpr int kFormat = 1;

// The metadata of both safetensors files; a file with any other does not load.
inline const std::map<std::string, std::string>& metadata() {
  static const std::map<std::string, std::string> kMetadata = {{"format", "lockstep"},
                                                               {"version", "1"},
                                                               {"convolution_weights", "OHWI"},
                                                               {"linear_weights", "OI"},
                                                               {"flatten", "HWC"}};
  return kMetadata;
}

// What samplers of all ranks must have in common.
inline std::string description_of(const data::Sampler& sampler) {
  const data::SamplerState state = sampler.state();
  return fmt::format("a sampler of {} samples for {} ranks: {}{}", sampler.set_size(), sampler.place().world_size,
                     state.options,
                     state.fingerprint.empty() ? "" : ", of the data set with the fingerprint " + state.fingerprint);
}

}  // namespace lockstep::checkpoint
