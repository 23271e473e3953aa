#include "src/models/pretrained_files.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "lockstep/core/error.h"
#include "src/models/model_parts.h"

namespace lockstep::models {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr const char* kConfigName = "config.json";

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::string file_in(const fs::path& folder) {
  for (const char* name : {kModelName, kIndexName})
    if (is_there(folder / name)) return (folder / name).string();
  const bool has_pickle = is_there(folder / "pytorch_model.bin");
  throw FileError(
      "{}: has neither {} nor {}{}", folder.string(), kModelName, kIndexName,
      has_pickle ? "; pytorch_model.bin is a pickle, which could run code, and is not read: convert it with Python's "
                   "safetensors.torch.save_file()"
                 : "");
}

PretrainedFile open_file(const std::string& path) {
  if (!is_there(path)) throw FileError("{}: there is no such file", path);
  PretrainedFile shard{std::make_shared<const data::MappedFile>(path), {}};
  const auto bytes = std::as_bytes(shard.file->bytes());
  shard.saved = train::parse_safetensors(bytes, path);
  std::stable_sort(shard.saved.tensors.begin(), shard.saved.tensors.end(),
                   [](const auto& a, const auto& b) { return std::less<>()(a.data.data(), b.data.data()); });
  return shard;
}

// The names of the tensors of each shard.
std::map<std::string, std::set<std::string>> read_index(const std::string& path) {
  std::map<std::string, std::set<std::string>> of_files;
  try {
    const json index = json::parse(json_text_of(path));
    for (const auto& [tensor, file] : index.at("weight_map").items()) of_files[file.get<std::string>()].insert(tensor);
  } catch (const json::exception& error) {
    throw FileError("{}: is not an index of safetensors: {}", path, error.what());
  }
  if (of_files.empty()) throw FileError("{}: weight_map names no tensor", path);
  return of_files;
}

std::vector<PretrainedFile> open_shards(const std::string& index_path) {
  const fs::path folder = fs::path(index_path).parent_path();
  std::vector<PretrainedFile> shards;
  for (const auto& [name, tensors] : read_index(index_path)) {
    if (fs::path(name).filename() != name)
      throw FileError("{}: the file '{}' is not in the folder of the index", index_path, name);
    if (!is_there(folder / name))
      throw FileError("{}: names the file {}, which is not there: {} tensors, such as '{}', are missing", index_path,
                      name, tensors.size(), *tensors.begin());
    PretrainedFile& shard = shards.emplace_back(open_file((folder / name).string()));
    std::set<std::string> found;
    for (const train::SavedTensor& saved : shard.saved.tensors) found.insert(saved.name);
    for (const auto& [unread, reason] : shard.saved.unread) found.insert(unread);
    for (const std::string& tensor : tensors)
      if (found.count(tensor) == 0)
        throw FileError("{}: promises tensor '{}' in {}, which does not have it", index_path, tensor, name);
  }
  return shards;
}

}  // namespace

PretrainedFiles open_pretrained(const std::string& path) {
  if (path.empty()) throw InvalidArgument("load_pretrained: the path is empty");
  if (!is_there(path)) throw FileError("{}: there is no such file or folder", path);
  std::error_code ignored;
  const bool is_folder = fs::is_directory(path, ignored);
  const std::string file = is_folder ? file_in(path) : path;
  PretrainedFiles files;
  if (file.ends_with(".index.json"))
    files.shards = open_shards(file);
  else
    files.shards.push_back(open_file(file));
  const fs::path config = fs::path(file).parent_path() / kConfigName;
  if ((is_folder || file.ends_with(".index.json")) && is_there(config)) {
    files.config_path = config.string();
    files.config = json_text_of(files.config_path);
  }
  return files;
}

Tensor tensor_in(const PretrainedFile& shard, const train::SavedTensor& saved) {
  auto* const bytes = const_cast<std::byte*>(saved.data.data());  // views of a module's source are only read
  if (reinterpret_cast<std::uintptr_t>(bytes) % size_of(saved.dtype) == 0 && !saved.data.empty())
    return Tensor::wrap(Buffer(bytes, saved.data.size(), &cpu_device(), [file = shard.file] {}), saved.shape,
                        saved.dtype);
  const Tensor copy = Tensor::empty(saved.shape, saved.dtype, cpu_device());
  if (!saved.data.empty()) std::memcpy(copy.buffer().data(), saved.data.data(), saved.data.size());
  return copy;
}

}  // namespace lockstep::models
