#include "lockstep/train/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string_view>
#include <unordered_map>

#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "src/optim/swapped_weights.h"
#include "src/train/files/durable_file.h"
#include "src/train/files/safetensors.h"

namespace lockstep::train {

namespace {

constexpr const char* kConvolutionWeights = "convolution_weights";

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
  replace_durably("save_safetensors", path, [&](DurableFile& file) { write_safetensors(file, tensors, all); });
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
