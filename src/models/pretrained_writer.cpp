#include "src/models/pretrained_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>

#include "lockstep/core/error.h"
#include "lockstep/train/safetensors.h"
#include "src/models/pretrained_files.h"
#include "src/train/files/durable_file.h"
#include "src/train/files/safetensors.h"

namespace lockstep::models {

namespace fs = std::filesystem;

namespace {

// A shard is model-00001-of-00003.safetensors. While files of that name belong to the model that is replaced, it is
// model-8d12c0f3-00001-of-00003.safetensors.
std::vector<std::string> shard_names(std::size_t count, const std::string& infix) {
  std::vector<std::string> names;
  for (std::size_t i = 1; i <= count; ++i)
    names.push_back(fmt::format("model-{}{:05}-of-{:05}.safetensors", infix, i, count));
  return names;
}

bool is_shard_name(const std::string& name) {
  static const std::regex pattern(R"(model-([0-9a-f]{8}-)?\d{5,9}-of-\d{5,9}\.safetensors)");
  return name.size() <= 64 && std::regex_match(name, pattern);
}

bool has_entry(const fs::path& path) {
  std::error_code ignored;
  return fs::symlink_status(path, ignored).type() != fs::file_type::not_found;
}

void remove_entry(const fs::path& path) {
  std::error_code error;
  fs::remove(path, error);
  if (error)
    throw FileError("save_pretrained: {}: belongs to the earlier model and cannot be removed: {}: remove it",
                    path.string(), error.message());
}

void remove_stale_shards(const fs::path& folder, const std::vector<std::string>& keep) {
  std::error_code error;
  std::vector<fs::path> stale;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (is_shard_name(name) && std::find(keep.begin(), keep.end(), name) == keep.end()) stale.push_back(entry->path());
  }
  if (error) throw FileError("save_pretrained: {}: cannot be listed: {}", folder.string(), error.message());
  for (const fs::path& path : stale) remove_entry(path);
}

class ShardedModel {
 public:
  ShardedModel(fs::path folder, const std::vector<NamedTensor>& tensors,
               const std::map<std::string, std::string>& metadata, std::vector<std::vector<std::size_t>> plan)
      : folder_(std::move(folder)), tensors_(tensors), metadata_(metadata), plan_(std::move(plan)) {}

  void write() const {
    const std::vector<std::string> names = shard_names(plan_.size(), "");
    const bool are_taken =
        std::any_of(names.begin(), names.end(), [&](const auto& each) { return has_entry(folder_ / each); });
    if (!are_taken) {
      write_shards(names);
    } else {
      const auto beside = shard_names(plan_.size(), fmt::format("{:08x}-", std::random_device()()));
      write_shards(beside);
      // The index names the shards beside, so that the others can be replaced.
      for (std::size_t i = 0; i < names.size(); ++i) link(beside[i], names[i]);
      write_index(names);
    }
    remove_stale_shards(folder_, names);
  }

 private:
  // The new model is complete when this returns.
  void write_shards(const std::vector<std::string>& names) const {
    try {
      for (std::size_t i = 0; i < names.size(); ++i) {
        std::vector<NamedTensor> own;
        for (const std::size_t each : plan_[i]) own.push_back(tensors_[each]);
        train::save_safetensors((folder_ / names[i]).string(), own, metadata_);
      }
    } catch (...) {
      std::error_code ignored;
      for (const std::string& name : names) fs::remove(folder_ / name, ignored);
      throw;
    }
    write_index(names);
    remove_entry(folder_ / kModelName);  // it would be read in place of the index
  }

  void write_index(const std::vector<std::string>& names) const {
    nlohmann::json map = nlohmann::json::object();
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < names.size(); ++i)
      for (const std::size_t each : plan_[i]) {
        map[tensors_[each].name] = names[i];
        total += tensors_[each].tensor.bytes();
      }
    const nlohmann::json index = {{"metadata", {{"total_size", total}}}, {"weight_map", map}};
    train::replace_durably("save_pretrained", (folder_ / kIndexName).string(),
                           [&](train::DurableFile& file) { file.write(index.dump(2) + "\n"); });
  }

  void link(const std::string& from, const std::string& to) const {
    remove_entry(folder_ / to);
    std::error_code error;
    fs::create_hard_link(folder_ / from, folder_ / to, error);
    if (error)
      throw FileError(
          "save_pretrained: {}: cannot be made a hard link to {}: {}: the model is complete under the names "
          "that {} has; save in an empty folder for the usual names",
          (folder_ / to).string(), from, error.message(), kIndexName);
  }

  const fs::path folder_;
  const std::vector<NamedTensor>& tensors_;
  const std::map<std::string, std::string>& metadata_;
  const std::vector<std::vector<std::size_t>> plan_;
};

}  // namespace

std::vector<std::vector<std::size_t>> plan_shards(std::span<const std::uint64_t> bytes, std::uint64_t most) {
  std::vector<std::vector<std::size_t>> shards;
  std::uint64_t left = 0;  // in the last shard
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (shards.empty() || bytes[i] > left) {
      shards.emplace_back();
      left = std::max(most, bytes[i]);
    }
    shards.back().push_back(i);
    left -= bytes[i];
  }
  return shards;
}

void write_pretrained(const std::string& folder, const std::vector<NamedTensor>& tensors,
                      const std::map<std::string, std::string>& metadata, std::uint64_t max_shard_bytes) {
  train::safetensors_header(tensors, metadata);  // throws for names that come twice, in whichever shards
  std::vector<std::uint64_t> bytes;
  for (const auto& [name, tensor] : tensors) bytes.push_back(tensor.bytes());
  auto plan = plan_shards(bytes, max_shard_bytes);
  if (plan.size() > 1) return ShardedModel(folder, tensors, metadata, std::move(plan)).write();
  train::save_safetensors((fs::path(folder) / kModelName).string(), tensors, metadata);
  remove_entry(fs::path(folder) / kIndexName);
  remove_stale_shards(folder, {});
}

}  // namespace lockstep::models
