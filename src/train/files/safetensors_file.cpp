#include "lockstep/train/safetensors.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <functional>
#include <random>
#include <string_view>
#include <unordered_map>

#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "src/optim/swapped_weights.h"
#include "src/train/files/durable_file.h"
#include "src/train/files/safetensors.h"

namespace lockstep::train {

namespace fs = std::filesystem;

namespace {

constexpr const char* kConvolutionWeights = "convolution_weights";

// A name next to `path` for one call. Two processes get different names, even on two machines.
std::string name_beside(const std::string& path) {
  static std::atomic<std::uint64_t> count = 0;
  return fmt::format("{}.writing-{}-{}-{:08x}", path, getpid(), ++count, std::random_device()());
}

std::string folder_of(const std::string& path) {
  const std::string folder = fs::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

Tensor copy_of(const SavedTensor& saved) {
  Tensor tensor = Tensor::empty(saved.shape, saved.dtype, cpu_device());
  if (!saved.data.empty()) std::memcpy(tensor.buffer().data(), saved.data.data(), saved.data.size());
  return tensor;
}

}  // namespace

void save_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                      const std::map<std::string, std::string>& metadata) {
  if (path.empty()) throw InvalidArgument("save_safetensors: the file's name is empty");
  std::map<std::string, std::string> all = metadata;
  // A caller that gives a format has its own layout.
  if (all.emplace("format", "lockstep").second) all.emplace(kConvolutionWeights, "OHWI");
  if (!optim::first_swapped(tensors).empty()) all.emplace("weights", "averages");
  safetensors_header(tensors, all);  // throws before the file exists
  const std::string folder = folder_of(path), temporary = name_beside(path);
  std::error_code ignored;  // for a folder without permission: the next call reports it
  if (!fs::is_directory(folder, ignored))
    throw FileError("save_safetensors: {}: cannot be made: there is no folder {}", path, folder);
  if (fs::is_directory(path, ignored))
    throw FileError("save_safetensors: {}: is a folder, expected a file's name", path);
  const std::string born_in = has_nameless_files(temporary) ? folder : "";
  try {
    DurableFile file(temporary, born_in);
    write_safetensors(file, tensors, all);
    file.finish();
    if (!born_in.empty()) file.give_name();
    rename_file(temporary, path);
    sync_folder(folder);
  } catch (...) {
    fs::remove(temporary, ignored);
    throw;
  }
}

namespace {

// The wanted names. Throws unless each exists and can be read.
std::vector<SavedTensor> chosen(SavedTensors& saved, const std::vector<std::string>& names, const std::string& path) {
  if (names.empty()) return std::move(saved.tensors);
  std::unordered_map<std::string_view, const SavedTensor*> by_name;
  for (const SavedTensor& tensor : saved.tensors) by_name.emplace(tensor.name, &tensor);
  std::vector<SavedTensor> tensors;
  for (const std::string& name : names) {
    const auto found = by_name.find(name);
    const auto unread = saved.unread.find(name);
    if (unread != saved.unread.end()) throw FileError("{}: tensor '{}' cannot be read: {}", path, name, unread->second);
    if (found == by_name.end()) throw FileError("{}: has no tensor '{}'", path, name);
    tensors.push_back(*found->second);
  }
  return tensors;
}

void warn_of_unread(const std::map<std::string, std::string>& unread, const std::string& path) {
  if (unread.empty()) return;
  log::warn("load_safetensors: {}: {} tensor{} cannot be read and {} left out: '{}': {}", path, unread.size(),
            unread.size() == 1 ? "" : "s", unread.size() == 1 ? "is" : "are", unread.begin()->first,
            unread.begin()->second);
}

}  // namespace

Safetensors load_safetensors(const std::string& path, const LoadSafetensorsOptions& options) {
  if (path.empty()) throw InvalidArgument("load_safetensors: the file's name is empty");
  const ReadFile file = read_file(path);
  SavedTensors saved = parse_safetensors(file.data, path);
  std::vector<SavedTensor> wanted = chosen(saved, options.names, path);
  // JSON objects are sorted by name.
  std::stable_sort(wanted.begin(), wanted.end(), [](const SavedTensor& a, const SavedTensor& b) {
    return std::less<>()(a.data.data(), b.data.data());
  });
  Safetensors loaded;
  for (const SavedTensor& tensor : wanted) loaded.tensors.push_back({tensor.name, copy_of(tensor)});
  if (const auto layout = saved.metadata.find(kConvolutionWeights); layout != saved.metadata.end())
    loaded.tensors.convolution_weights = layout->second;
  loaded.metadata = std::move(saved.metadata);
  if (options.names.empty()) warn_of_unread(saved.unread, path), loaded.unread = std::move(saved.unread);
  return loaded;
}

}  // namespace lockstep::train
