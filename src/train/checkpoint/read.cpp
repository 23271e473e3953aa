#include "src/train/checkpoint/read.h"

#include <algorithm>

#include "lockstep/core/error.h"
#include "src/train/checkpoint/files.h"
#include "src/train/checkpoint/folder.h"
#include "src/train/checkpoint/folder_lock.h"
#include "src/train/checkpoint/shards.h"

namespace lockstep::checkpoint {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr FileSize kSizeOfLatest{.most = 256}, kSizeOfManifest{.most = std::uint64_t{1} << 20};

std::string_view text_of(const ReadFile& file) {
  return {reinterpret_cast<const char*>(file.data.data()), file.data.size()};
}

json parse_json(const ReadFile& file, const std::string& path) {
  try {
    return json::parse(text_of(file));
  } catch (const json::exception& error) {
    throw FileError("{}: is damaged: {}", path, error.what());
  }
}

ReadFile read_verified(const std::string& path, const FileSize& size, const std::string& sha256) {
  ReadFile file = read_file(path, size);
  if (file.sha256 != sha256)
    throw FileError("{}: is damaged: its SHA-256 is {}, expected {}", path, file.sha256, sha256);
  return file;
}

void check_format(const json& object, const std::string& path) {
  if (const json& format = object.at("format"); format != kFormat)
    throw FileError("{}: has format {}, this version of Lockstep reads {}: load it with the version that wrote it",
                    path, format.dump(), kFormat);
}

std::vector<SavedTensor> parse_tensors(const ReadFile& file, const std::string& path) {
  return parse_file(file.data, path).tensors;
}

// One file, or one of each rank that saved; none: {}.
std::vector<SavedTensor> parse_optimizer(LoadedCheckpoint& loaded, const fs::path& folder) {
  std::vector<Shard> shards;
  std::string last;
  for (const auto& [name, file] : loaded.files)  // in the order of the ranks, which is their names'
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
  return put_together(shards, loaded.memory);
}

constexpr std::size_t kHexDigits = 64;  // of a SHA-256

Found read_latest(const fs::path& folder) {
  const std::string path = (folder / kLatest).string();
  const std::string text(text_of(read_file(path, kSizeOfLatest)));
  // "step-00000120 <checksum>\n"
  const std::size_t space = text.find(' ');
  const bool whole = space != text.npos && is_folder_name(text.substr(0, space)) &&
                     text.size() == space + 1 + kHexDigits + 1 && text.back() == '\n' &&
                     text.find_first_not_of("0123456789abcdef", space + 1) == text.size() - 1;
  if (!whole) throw FileError("{}: is damaged: expected a folder's name and a checksum", path);
  return {folder / text.substr(0, space), text.substr(space + 1, kHexDigits)};
}

// The contents of a folder without a checkpoint, in words.
std::string what_is_in(const fs::path& folder) {
  if (!fs::exists(folder)) return "there is no such folder";
  if (!fs::is_directory(folder)) return "it is no folder";
  bool is_empty = true;
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    is_empty = is_empty && name == FolderLock::kFile;
    if (is_folder_name(name)) names.push_back(name);
  }
  if (is_empty) return "it is empty";
  if (names.empty())
    return fmt::format("it holds neither '{}' nor a checkpoint's '{}' and '{}'", kLatest, kManifest, kModel);
  return fmt::format("it holds {} but no '{}': name that folder itself to load it",
                     *std::max_element(names.begin(), names.end()), kLatest);
}

}  // namespace

// Another layout has the same shapes at times: nothing else would tell.
SavedTensors parse_file(std::span<const std::byte> file, const std::string& path) {
  SavedTensors saved = parse_own_safetensors(file, path);
  for (const auto& [key, wanted] : metadata()) {
    const auto found = saved.metadata.find(key);
    if (found != saved.metadata.end() && found->second == wanted) continue;
    const std::string says = found == saved.metadata.end() ? "nothing" : "'" + found->second + "'";
    throw FileError(
        "{}: of {} its metadata says {}, expected '{}': permute the weights to that layout and write them with that "
        "metadata, or load the "
        "file with the version of Lockstep that wrote it",
        path, key, says, wanted);
  }
  return saved;
}

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
  return origin;
}

std::optional<Found> find_checkpoint(const fs::path& folder, std::string& why) {
  if (fs::exists(folder / kLatest)) return read_latest(folder);
  if (is_checkpoint(folder)) return Found{folder, std::nullopt};
  why = fmt::format("{}: {}", fs::absolute(folder).string(), what_is_in(folder));
  return std::nullopt;
}

LoadedCheckpoint read_checkpoint(const Found& found) {
  LoadedCheckpoint loaded;
  loaded.folder = found.folder.string();
  const auto path_of = [&](const std::string& name) { return (found.folder / name).string(); };
  const std::string path = path_of(kManifest);
  const ReadFile file = found.manifest_sha256 ? read_verified(path, kSizeOfManifest, *found.manifest_sha256)
                                              : read_file(path, kSizeOfManifest);
  const json manifest = parse_json(file, path);
  check_format(manifest, path);
  loaded.is_latest = found.manifest_sha256.has_value();
  loaded.origin = origin_of(manifest);
  for (const auto& [name, entry] : manifest.at("files").items()) {
    if (name != kModel && name != kOptimizer && name != kAverages && name != kHook && name != kProgram &&
        name != kState && !is_shard_name(name) && !is_rank_name(name))
      throw FileError("{}: lists '{}', which is no file of a checkpoint", path, name);
    const auto bytes = entry.at("bytes").get<std::uint64_t>();
    loaded.files[name] = read_verified(path_of(name), {bytes, bytes}, entry.at("sha256").get<std::string>());
  }
  for (const char* needed : {kModel, kState})
    if (loaded.files.count(needed) == 0) throw FileError("{}: does not list {}", path, needed);
  loaded.state = parse_json(loaded.files.at(kState), path_of(kState));
  check_format(loaded.state, path_of(kState));
  loaded.model = parse_tensors(loaded.files.at(kModel), path_of(kModel));
  loaded.optimizer = parse_optimizer(loaded, found.folder);
  if (loaded.files.count(kAverages) != 0)
    loaded.averages = parse_tensors(loaded.files.at(kAverages), path_of(kAverages));
  if (loaded.files.count(kHook) != 0) loaded.hook = parse_tensors(loaded.files.at(kHook), path_of(kHook));
  if (loaded.files.count(kProgram) != 0) loaded.program = parse_tensors(loaded.files.at(kProgram), path_of(kProgram));
  return loaded;
}

}  // namespace lockstep::checkpoint
