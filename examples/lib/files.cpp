#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "examples/lib/training.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/data/cifar10.h"

namespace lockstep::examples {

namespace fs = std::filesystem;

namespace {

std::optional<std::string> folder_within(const std::string& folder, const std::string& set,
                                         const std::vector<std::string>& files) {
  for (const fs::path& candidate : {fs::path(folder), fs::path(folder) / set})
    for (const std::string& file : files) {
      std::error_code failure;
      if (fs::exists(candidate / file, failure)) return candidate.string();
    }
  return std::nullopt;
}

// The examples use public headers alone, like programs outside of this repository, so not the library's writer of
// checkpoints.
void write_text(const std::string& path, const std::string& text, bool only_try) {
  std::error_code failure;
  const fs::file_type type = fs::symlink_status(path, failure).type();
  if (type == fs::file_type::directory) throw FileError("--json-file {}: is a folder", path);
  const bool by_rename = type == fs::file_type::regular || type == fs::file_type::not_found;
  const std::string written = by_rename ? fmt::format("{}.writing-{}", path, getpid()) : path;
  errno = 0;
  std::ofstream file(written, only_try ? std::ios::app : std::ios::trunc);
  file << text;
  file.close();
  bool done = !file.fail();
  if (done && by_rename && !only_try) done = std::rename(written.c_str(), path.c_str()) == 0;
  const int reason = errno;
  if (by_rename && (only_try || !done)) fs::remove(written, failure);
  if (!done) throw FileError("--json-file {}: cannot be written: {}", path, std::strerror(reason));
}

}  // namespace

std::string find_data(const TrainingFlags& flags, const std::string& set, const std::vector<std::string>& files) {
  const std::string remedy = fmt::format("`scripts/fetch-data {}` downloads it and prints the folder", set);
  const auto shared = env::text(env::kData);
  if (flags.data.empty() && !shared) throw FileError("no {}: give --data or set {}; {}", set, env::kData, remedy);
  const std::string source = flags.data.empty() ? env::kData : "--data",
                    folder = flags.data.empty() ? *shared : flags.data;
  const auto found = folder_within(folder, set, files);
  if (!found)
    throw FileError("{} {}: there is no {} in this folder or its folder {}; {}", source, folder, files[0], set, remedy);
  return *found;
}

std::string find_cifar10(const TrainingFlags& flags) {
  const std::string known = data::find_cifar10(flags.data);
  return known.empty() ? find_data(flags, "cifar10", {"data_batch_1.bin"}) : known;
}

void check_json_file(const TrainingFlags& flags, const ProcessGroup& group) {
  if (group.rank() == 0 && !flags.json_file.empty()) write_text(flags.json_file, "", /*only_try=*/true);
}

void write_json_file(const TrainingFlags& flags, const ProcessGroup& group, const nlohmann::json& figures) {
  if (group.rank() == 0 && !flags.json_file.empty())
    write_text(flags.json_file, figures.dump(1) + "\n", /*only_try=*/false);
}

}  // namespace lockstep::examples
