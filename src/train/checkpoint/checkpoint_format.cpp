#include "src/train/checkpoint/checkpoint_format.h"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <chrono>

#include "lockstep/core/error.h"
#include "src/core/base/digits.h"

namespace lockstep::train::checkpoint {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

// -- names

constexpr std::string_view kStepPart = "step-", kWritingPart = "writing-", kOptimizerPart = "optimizer-",
                           kRankPart = "rank-", kBetween = "-of-", kEnd = ".safetensors";
constexpr std::size_t kRankDigits = 5;

std::string numbered_name(std::string_view begin, int rank, int ranks) {
  return fmt::format("{}{:0{}}{}{:0{}}{}", begin, rank + 1, kRankDigits, kBetween, ranks, kRankDigits, kEnd);
}

bool is_numbered_name(std::string_view begin, std::string_view name) {
  if (name.size() != begin.size() + kBetween.size() + kEnd.size() + 2 * kRankDigits) return false;
  const auto take = [&name](std::size_t count) {
    const std::string_view taken = name.substr(0, count);
    name.remove_prefix(count);
    return taken;
  };
  if (take(begin.size()) != begin || !is_digits(take(kRankDigits))) return false;
  return take(kBetween.size()) == kBetween && is_digits(take(kRankDigits)) && name == kEnd;
}

}  // namespace

// -- names

std::string folder_name(std::int64_t step, int again) {
  return again == 0 ? fmt::format("step-{:08}", step) : fmt::format("step-{:08}.{}", step, again);
}

bool is_folder_name(std::string_view name) {
  if (!name.starts_with(kStepPart)) return false;
  name.remove_prefix(kStepPart.size());
  const std::size_t dot = name.find('.');
  return dot >= 8 && is_digits(name.substr(0, dot)) &&
         (dot == name.npos ? name.size() >= 8 : is_digits(name.substr(dot + 1)));
}

std::int64_t step_of_folder(std::string_view name) {
  std::int64_t step = 0;
  const std::string_view digits = name.substr(kStepPart.size());
  return std::from_chars(digits.data(), digits.data() + digits.size(), step).ec == std::errc() ? step : 0;
}

std::string temporary_name(const std::string& name) { return fmt::format("{}{}-{}", kWritingPart, name, getpid()); }

bool is_temporary_name(std::string_view name) {
  const std::size_t dash = name.rfind('-');
  return name == kNextLatest ||
         (name.starts_with(kWritingPart) && dash > kWritingPart.size() && is_digits(name.substr(dash + 1)) &&
          is_folder_name(name.substr(kWritingPart.size(), dash - kWritingPart.size())));
}

std::string shard_name(int rank, int ranks) { return numbered_name(kOptimizerPart, rank, ranks); }
bool is_shard_name(std::string_view name) { return is_numbered_name(kOptimizerPart, name); }

std::string rank_name(int rank, int ranks) { return numbered_name(kRankPart, rank, ranks); }
bool is_rank_name(std::string_view name) { return is_numbered_name(kRankPart, name); }

// -- files of tensors

const std::map<std::string, std::string>& metadata() {
  static const std::map<std::string, std::string> kMetadata = {{"format", "lockstep"},
                                                               {"version", "1"},
                                                               {"convolution_weights", "OHWI"},
                                                               {"linear_weights", "OI"},
                                                               {"flatten", "HWC"}};
  return kMetadata;
}

// Weights in another layout can have the same shapes, so that only the metadata tells them apart.
SavedTensors parse_file(std::span<const std::byte> file, const std::string& path) {
  SavedTensors saved = parse_own_safetensors(file, path);
  for (const auto& [key, wanted] : metadata()) {
    const auto found = saved.metadata.find(key);
    if (found != saved.metadata.end() && found->second == wanted) continue;
    const std::string says = found == saved.metadata.end() ? "nothing" : "'" + found->second + "'";
    throw FileError(
        "{}: its metadata has {} for '{}', expected '{}': permute the weights to that layout and write them with that "
        "metadata, or load the file with the version of Lockstep that wrote it",
        path, says, key, wanted);
  }
  return saved;
}

// -- manifest

Origin origin_of(const json& manifest) {
  Origin origin;
  if (!manifest.is_object()) return origin;
  const auto number = [&manifest](const char* key) {
    const auto found = manifest.find(key);
    return found != manifest.end() && found->is_number_integer() ? found->get<std::int64_t>() : 0;
  };
  if (const auto job = manifest.find("job"); job != manifest.end()) origin.job = job_of(*job);
  if (const auto lineage = manifest.find("lineage"); lineage != manifest.end() && lineage->is_string())
    origin.lineage = *lineage;
  origin.sequence = number("sequence");
  origin.step = number("step");
  origin.saved_at = number("saved_at");
  return origin;
}

std::int64_t seconds_since_1970() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

bool is_checkpoint(const fs::path& folder) { return fs::exists(folder / kManifest) && fs::exists(folder / kModel); }

}  // namespace lockstep::train::checkpoint
