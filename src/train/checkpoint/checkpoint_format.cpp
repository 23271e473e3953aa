#include "src/train/checkpoint/checkpoint_format.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "lockstep/core/error.h"
#include "src/core/base/digits.h"
#include "src/train/checkpoint/folder/folder_lock.h"

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

// -- slices of the optimizer's state

constexpr const char* kShapes = "whole_shapes";  // in the metadata
constexpr std::size_t kMostDigits = 18;          // of an element's number

// A file of slices, as it was read.
struct Shard {
  std::string path;
  SavedTensors saved;
};

// "name[begin:end]"
struct SliceName {
  std::string tensor;
  std::size_t begin = 0, end = 0;
};

bool parse(const std::string& name, SliceName& slice) {
  const std::size_t open = name.rfind('['), colon = name.rfind(':');
  if (open == name.npos || colon == name.npos || colon < open || name.back() != ']') return false;
  const std::string begin = name.substr(open + 1, colon - open - 1),
                    end = name.substr(colon + 1, name.size() - colon - 2);
  if (!is_digits(begin) || !is_digits(end) || begin.size() > kMostDigits || end.size() > kMostDigits) return false;
  slice = {name.substr(0, open), std::stoull(begin), std::stoull(end)};
  return true;
}

Shape shape_in(const json& shapes, const std::string& tensor, const std::string& path) {
  const auto found = shapes.find(tensor);
  if (found == shapes.end()) throw FileError("{}: is damaged: it has slices of '{}' but not its shape", path, tensor);
  try {
    return Shape(found->get<std::vector<std::int64_t>>());
  } catch (const std::exception& error) {
    throw FileError("{}: is damaged: the shape of '{}': {}", path, tensor, error.what());
  }
}

json shapes_of(const Shard& shard) {
  const auto text = shard.saved.metadata.find(kShapes);
  json shapes =
      json::parse(text == shard.saved.metadata.end() ? "" : text->second, nullptr, /*allow_exceptions=*/false);
  if (!shapes.is_object())
    throw FileError("{}: is damaged: its metadata does not have the shapes of the tensors", shard.path);
  return shapes;
}

// Joins slices, in the order of the ranks, to whole tensors.
class SliceJoiner {
 public:
  explicit SliceJoiner(std::list<std::vector<std::byte>>& memory) : memory_(memory) {}

  // Throws FileError for elements that come twice, leave a gap, or do not fit the shape.
  void add(const Shard& shard) {
    const json shapes = shapes_of(shard);
    for (const SavedTensor& saved : shard.saved.tensors) {
      SliceName slice;
      if (parse(saved.name, slice))
        add(slice, saved, shape_in(shapes, slice.tensor, shard.path), shard.path);
      else
        tensors_.push_back(saved);
    }
  }

  // Throws FileError if elements are missing at the end of a tensor.
  std::vector<SavedTensor> finish(const std::vector<Shard>& shards) {
    for (auto& [name, whole] : wholes_) {
      if (whole.filled != static_cast<std::size_t>(whole.tensor.shape.count()))
        throw FileError("{}: is damaged: of '{}' {} the {} files of optimizer state have {} elements",
                        shards.front().path, name, whole.tensor.shape.text(), shards.size(), whole.filled);
      tensors_.push_back(whole.tensor);
    }
    return std::move(tensors_);
  }

 private:
  struct Whole {
    SavedTensor tensor;
    std::vector<std::byte>* bytes = nullptr;
    std::size_t filled = 0;  // elements
  };

  void add(const SliceName& slice, const SavedTensor& saved, const Shape& shape, const std::string& path) {
    Whole& whole = wholes_[slice.tensor];
    const std::size_t count = static_cast<std::size_t>(shape.count()), element = size_of(saved.dtype);
    if (whole.bytes == nullptr) {
      whole.bytes = &memory_.emplace_back(count * element);
      whole.tensor = {slice.tensor, saved.dtype, shape, *whole.bytes};
    }
    if (slice.begin != whole.filled || slice.end < slice.begin || slice.end > count ||
        saved.dtype != whole.tensor.dtype || shape != whole.tensor.shape ||
        saved.data.size() != (slice.end - slice.begin) * element)
      throw FileError(
          "{}: is damaged: '{}' of {} elements of {} {} does not follow the {} elements of the files before", path,
          saved.name, saved.shape.count(), name_of(saved.dtype), shape.text(), whole.filled);
    if (!saved.data.empty())
      std::memcpy(whole.bytes->data() + slice.begin * element, saved.data.data(), saved.data.size());
    whole.filled = slice.end;
  }

  std::list<std::vector<std::byte>>& memory_;
  std::map<std::string, Whole> wholes_;
  std::vector<SavedTensor> tensors_;
};

// -- reading

constexpr FileSize kSizeOfLatest{.most = 256}, kSizeOfManifest{.most = std::uint64_t{1} << 20};
constexpr std::size_t kHexDigits = 64;  // of a SHA-256

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
  SliceJoiner joiner(loaded.memory);
  for (const Shard& shard : shards) joiner.add(shard);
  return joiner.finish(shards);
}

Found read_latest(const fs::path& folder) {
  const std::string path = (folder / kLatest).string();
  const std::string text(text_of(read_file(path, kSizeOfLatest)));
  // "step-00000120 <checksum>\n"
  const std::size_t space = text.find(' ');
  const bool is_complete = space != text.npos && is_folder_name(text.substr(0, space)) &&
                           text.size() == space + 1 + kHexDigits + 1 && text.back() == '\n' &&
                           text.find_first_not_of("0123456789abcdef", space + 1) == text.size() - 1;
  if (!is_complete) throw FileError("{}: is damaged: expected a folder's name and a checksum", path);
  return {folder / text.substr(0, space), text.substr(space + 1, kHexDigits)};
}

// The contents of a folder without a checkpoint, in words.
std::string what_is_in(const fs::path& folder) {
  if (!fs::exists(folder)) return "there is no such folder";
  if (!fs::is_directory(folder)) return "it is not a folder";
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

void check_listed_name(const std::string& name, const std::string& manifest) {
  for (const char* known : {kModel, kOptimizer, kAverages, kHook, kProgram, kState})
    if (name == known) return;
  if (!is_shard_name(name) && !is_rank_name(name))
    throw FileError("{}: lists '{}', which is not a file of a checkpoint", manifest, name);
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

std::vector<NamedTensor> shard_of(const std::vector<optim::StatePart>& parts, int rank) {
  std::vector<NamedTensor> tensors;
  for (const optim::StatePart& part : parts) {
    if (part.is_slice && part.values.count() != 0)
      tensors.push_back(
          {fmt::format("{}[{}:{}]", part.name, part.begin, part.begin + part.values.count()), part.values});
    else if (!part.is_slice && rank == 0)
      tensors.push_back({part.name, part.values});
  }
  return tensors;
}

std::map<std::string, std::string> shard_metadata(const std::vector<optim::StatePart>& parts) {
  json shapes = json::object();  // not ordered_json, which searches all of its keys for each new one
  for (const optim::StatePart& part : parts) {
    if (!part.is_slice) continue;
    const auto extents = part.whole.extents();
    shapes[part.name] = std::vector<std::int64_t>(extents.begin(), extents.end());
  }
  return {{kShapes, shapes.dump()}};
}

// -- manifest and reading

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

bool is_checkpoint(const fs::path& folder) { return fs::exists(folder / kManifest) && fs::exists(folder / kModel); }

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
    check_listed_name(name, path);
    const auto bytes = entry.at("bytes").get<std::uint64_t>();
    loaded.files[name] = read_verified(path_of(name), {bytes, bytes}, entry.at("sha256").get<std::string>());
  }
  for (const char* needed : {kModel, kState})
    if (loaded.files.count(needed) == 0) throw FileError("{}: does not list {}", path, needed);
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

}  // namespace lockstep::train::checkpoint
