#include "src/train/checkpoint/checkpoint_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "src/data/formats/json_depth.h"
#include "src/train/checkpoint/folder/checkpoint_folder.h"
#include "src/train/checkpoint/folder/folder_lock.h"
#include "src/train/checkpoint/slice_files.h"

namespace lockstep::train::checkpoint {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr FileSize kSizeOfLatest{.most = 256}, kSizeOfManifest{.most = std::uint64_t{1} << 20};
constexpr std::size_t kHexDigits = 64;  // of a SHA-256

// A file is not what was saved, or is missing. An older checkpoint may be intact.
class DamagedCheckpoint : public FileError {
 public:
  using FileError::FileError;
};

// -- files

std::string_view text_of(const ReadFile& file) {
  return {reinterpret_cast<const char*>(file.data.data()), file.data.size()};
}

json parse_json(const ReadFile& file, const std::string& path) {
  try {
    data::check_json_depth(text_of(file), path);
    return json::parse(text_of(file));
  } catch (const FileError& error) {
    throw DamagedCheckpoint("{}", error.what());
  } catch (const json::exception& error) {
    throw DamagedCheckpoint("{}: is damaged: {}", path, error.what());
  }
}

ReadFile read_of_checkpoint(const std::string& path, const FileSize& size) {
  try {
    return read_file(path, size);
  } catch (const NoMemoryForFile&) {
    throw;
  } catch (const FileError& error) {
    throw DamagedCheckpoint("{}", error.what());
  }
}

ReadFile read_verified(const std::string& path, const FileSize& size, const std::string& sha256) {
  ReadFile file = read_of_checkpoint(path, size);
  if (file.sha256 != sha256)
    throw DamagedCheckpoint("{}: is damaged: its SHA-256 is {}, expected {}", path, file.sha256, sha256);
  return file;
}

void check_format(const json& object, const std::string& path) {
  if (const json& format = object.at("format"); format != kFormat)
    throw FileError("{}: has format {}, this version of Lockstep reads {}: load it with the version that wrote it",
                    path, format.dump(), kFormat);
}

void check_listed_name(const std::string& name, const std::string& manifest) {
  for (const char* known : {kModel, kOptimizer, kAverages, kHook, kProgram, kState})
    if (name == known) return;
  if (!is_shard_name(name) && !is_rank_name(name))
    throw DamagedCheckpoint("{}: lists '{}', which is not a file of a checkpoint", manifest, name);
}

std::vector<SavedTensor> parse_tensors(const ReadFile& file, const std::string& path) {
  return parse_file(file.data, path).tensors;
}

// The optimizer's state, from one file or from one file of each rank that saved; {} if there is no such file.
std::vector<SavedTensor> parse_optimizer(LoadedCheckpoint& loaded, const fs::path& folder) {
  std::vector<Shard> shards;
  std::string last;
  for (const auto& [name, file] : loaded.files)  // the order of the names is that of the ranks
    if (is_shard_name(name)) {
      const std::string path = (folder / name).string();
      shards.push_back({path, parse_file(file.data, path)});
      last = name;
    }
  const auto whole = loaded.files.find(kOptimizer);
  const bool has_whole = whole != loaded.files.end();
  if (shards.empty())
    return has_whole ? parse_tensors(whole->second, (folder / kOptimizer).string()) : std::vector<SavedTensor>();
  const int ranks = static_cast<int>(shards.size());
  if (has_whole || last != shard_name(ranks - 1, ranks))
    throw FileError(
        "{}: does not list one file of optimizer state for each rank that saved: it lists {}, the last is '{}'{}",
        (folder / kManifest).string(), ranks, last, has_whole ? fmt::format(", and '{}'", kOptimizer) : "");
  return join_slices(shards, loaded.memory);
}

// -- one checkpoint

struct Found {
  fs::path folder;
  std::optional<std::string> manifest_sha256;  // from `latest`; without it the manifest is not verified
};

Found read_latest(const fs::path& folder) {
  const std::string path = (folder / kLatest).string();
  const std::string text(text_of(read_of_checkpoint(path, kSizeOfLatest)));
  // "step-00000120 <checksum>\n"
  const std::size_t space = text.find(' ');
  const bool is_complete = space != text.npos && is_folder_name(text.substr(0, space)) &&
                           text.size() == space + 1 + kHexDigits + 1 && text.back() == '\n' &&
                           text.find_first_not_of("0123456789abcdef", space + 1) == text.size() - 1;
  if (!is_complete) throw DamagedCheckpoint("{}: is damaged: expected a folder's name and a checksum", path);
  return {folder / text.substr(0, space), text.substr(space + 1, kHexDigits)};
}

// Reads the manifest and the files that it lists.
void read_files(const Found& found, LoadedCheckpoint& loaded) {
  const std::string path = (found.folder / kManifest).string();
  const ReadFile file = found.manifest_sha256 ? read_verified(path, kSizeOfManifest, *found.manifest_sha256)
                                              : read_of_checkpoint(path, kSizeOfManifest);
  const json manifest = parse_json(file, path);
  try {
    check_format(manifest, path);
    loaded.origin = origin_of(manifest);
    for (const auto& [name, entry] : manifest.at("files").items()) {
      check_listed_name(name, path);
      const auto bytes = entry.at("bytes").get<std::uint64_t>();
      loaded.files[name] =
          read_verified((found.folder / name).string(), {bytes, bytes}, entry.at("sha256").get<std::string>());
    }
  } catch (const json::exception& error) {
    throw DamagedCheckpoint("{}: is damaged: {}", path, error.what());
  }
  for (const char* needed : {kModel, kState})
    if (loaded.files.count(needed) == 0) throw DamagedCheckpoint("{}: does not list {}", path, needed);
}

LoadedCheckpoint read_checkpoint(const Found& found) {
  LoadedCheckpoint loaded;
  loaded.folder = found.folder.string();
  const auto path_of = [&](const std::string& name) { return (found.folder / name).string(); };
  read_files(found, loaded);
  loaded.state = parse_json(loaded.files.at(kState), path_of(kState));
  check_format(loaded.state, path_of(kState));
  loaded.model = parse_tensors(loaded.files.at(kModel), path_of(kModel));
  loaded.optimizer = parse_optimizer(loaded, found.folder);
  const auto parse_if_listed = [&](const char* name, std::vector<SavedTensor>& tensors) {
    if (loaded.files.count(name) != 0) tensors = parse_tensors(loaded.files.at(name), path_of(name));
  };
  parse_if_listed(kAverages, loaded.averages);
  parse_if_listed(kHook, loaded.hook);
  parse_if_listed(kProgram, loaded.program);
  return loaded;
}

// -- a folder of checkpoints

// The contents of a folder without a checkpoint, in words.
std::string what_is_in(const fs::path& folder) {
  if (!fs::exists(folder)) return "there is no such folder";
  if (!fs::is_directory(folder)) return "it is not a folder";
  bool is_empty = true;
  for (const auto& entry : fs::directory_iterator(folder))
    is_empty = is_empty && entry.path().filename().string() == FolderLock::kFile;
  return is_empty ? "it is empty"
                  : fmt::format("it holds neither '{}' nor a checkpoint's '{}' and '{}'", kLatest, kManifest, kModel);
}

// The names of the checkpoints, newest first, also of damaged ones.
std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<KeptCheckpoint> all;
  if (fs::is_directory(folder)) all = checkpoints_in(folder);
  std::erase_if(all, [&](const KeptCheckpoint& each) {
    return !fs::exists(folder / each.name / kManifest) && !fs::exists(folder / each.name / kModel);
  });
  sort_by_age(all);
  std::vector<std::string> names;
  for (KeptCheckpoint& each : all) names.push_back(std::move(each.name));
  return names;
}

// Looks for the newest checkpoint of a folder that is intact.
class NewestSearch {
 public:
  NewestSearch(const char* operation, const fs::path& folder) : operation_(operation), folder_(folder) {}

  // Nullopt if it is damaged, of another training, or has been tried before.
  std::optional<LoadedCheckpoint> read(const Found& found) {
    const std::string name = found.folder.filename().string();
    if (!tried_.insert(name).second) return std::nullopt;
    const Origin origin = origin_in(found.folder);
    if (!lineage_.empty() && !origin.lineage.empty() && origin.lineage != lineage_) {
      damages_.push_back(fmt::format("{}: is of another training", found.folder.string()));
      return std::nullopt;
    }
    if (lineage_.empty()) lineage_ = origin.lineage;
    try {
      LoadedCheckpoint loaded = read_checkpoint(found);
      for (const std::string& damage : damages_)
        log::warn("{}: {}: {} is loaded instead", operation_, damage, loaded.folder);
      loaded.damaged = std::move(damaged_);
      return loaded;
    } catch (const DamagedCheckpoint& damage) {
      damages_.emplace_back(damage.what());
      damaged_.push_back(name);
      return std::nullopt;
    }
  }

  std::optional<Found> latest() {
    try {
      if (fs::exists(folder_ / kLatest)) return read_latest(folder_);
      damages_.push_back(fmt::format("{}: is missing", (folder_ / kLatest).string()));
    } catch (const DamagedCheckpoint& damage) {
      damages_.emplace_back(damage.what());
    }
    return std::nullopt;
  }

  [[noreturn]] void fail() const {
    if (damages_.size() == 1) throw FileError("{}", damages_.front());
    std::string all;
    for (const std::string& damage : damages_) all += (all.empty() ? "" : "; ") + damage;
    throw FileError("{}: no checkpoint there is intact: {}", folder_.string(), all);
  }

 private:
  const char* operation_;
  fs::path folder_;
  std::string lineage_;  // of the newest whose manifest can be read: the training to continue
  std::set<std::string> tried_;
  std::vector<std::string> damages_, damaged_;  // texts; names of checkpoints
};

// Have all files the sizes that the manifest lists?
bool has_all_files(const fs::path& checkpoint) {
  const json manifest = parse_json(read_file((checkpoint / kManifest).string(), kSizeOfManifest), "");
  return std::all_of(manifest.at("files").items().begin(), manifest.at("files").items().end(), [&](const auto& entry) {
    return fs::file_size(checkpoint / entry.key()) == entry.value().at("bytes").template get<std::uint64_t>();
  });
}

}  // namespace

std::optional<LoadedCheckpoint> read_newest(const char* operation, const fs::path& folder, std::string& why_none) {
  const bool has_latest = fs::exists(folder / kLatest);
  if (!has_latest && is_checkpoint(folder)) {
    LoadedCheckpoint loaded = read_checkpoint({folder, std::nullopt});
    loaded.is_by_own_folder = true;
    return loaded;
  }
  const std::vector<std::string> names = names_in(folder);
  if (!has_latest && names.empty()) {
    why_none = fmt::format("{}: {}", fs::absolute(folder).string(), what_is_in(folder));
    return std::nullopt;
  }
  NewestSearch search(operation, folder);
  if (const auto latest = search.latest())
    if (auto loaded = search.read(*latest)) return loaded;
  for (const std::string& name : names)
    if (auto loaded = search.read({folder / name, std::nullopt})) return loaded;
  search.fail();
}

std::string newest_with_all_files(const fs::path& folder) noexcept {
  try {
    std::vector<std::string> names;
    try {
      names.push_back(read_latest(folder).folder.filename().string());
    } catch (const std::exception&) {
      // The others are looked at.
    }
    for (std::string& name : names_in(folder)) names.push_back(std::move(name));
    for (const std::string& name : names) {
      try {
        if (has_all_files(folder / name)) return (folder / name).string();
      } catch (const std::exception&) {
        // Not this one.
      }
    }
  } catch (const std::exception&) {
    // The disk does not answer.
  }
  return "";
}

}  // namespace lockstep::train::checkpoint
