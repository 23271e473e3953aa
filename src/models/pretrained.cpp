#include "lockstep/models/pretrained.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>

#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/variable.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/core/error.h"
#include "lockstep/nn/lora.h"
#include "lockstep/train/safetensors.h"
#include "src/ddp/checks/replicas.h"
#include "src/models/model_parts.h"
#include "src/models/name_translator.h"
#include "src/models/pretrained_files.h"
#include "src/models/pretrained_writer.h"
#include "src/nn/module/convolutions.h"
#include "src/train/files/durable_file.h"

namespace lockstep::models {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

// -- loading

void check_model_type(const PretrainedFiles& files, const std::string& expected) {
  // A file alone says nothing of its architecture.
  if (!expected.empty() && !files.config.empty()) ConfigFile(files.config_path, {expected});
}

// The tensors of a type that cannot be read, except those that a rule skips. Throws if the module has one of them, and
// with `strict` for all.
std::vector<std::string> check_unread(const PretrainedFile& shard, const NameTranslator& names,
                                      const nn::Module& module, bool strict) {
  std::vector<std::string> unread;
  for (const auto& [name, reason] : shard.saved.unread) {
    const std::string wanted = names.to_module(name).name;
    if (wanted.empty()) continue;
    bool is_own = false;
    for (const NamedTensor& own : module.state_dict()) is_own = is_own || own.name == wanted;
    if (is_own) throw FileError("{}: tensor '{}' cannot be read: {}", shard.file->path(), name, reason);
    if (strict)
      throw FileError(
          "{}: tensor '{}' cannot be read: {}; the module has no tensor '{}': a rule of .names can skip it, and with "
          "strict = false it is left out",
          shard.file->path(), name, reason, wanted);
    unread.push_back(wanted);
  }
  return unread;
}

std::string layout_of_convolutions(const train::SavedTensors& saved) {
  const auto found = saved.metadata.find("convolution_weights");
  return found == saved.metadata.end() ? "OIHW" : found->second;
}

// The tensors of all shards, under the names and in the layouts of a module.
FileTensors translated(const PretrainedFiles& files, const NameTranslator& names, PretrainedLayout& layout) {
  FileTensors tensors;
  tensors.convolution_weights = layout_of_convolutions(files.shards.front().saved);
  for (const PretrainedFile& shard : files.shards) {
    if (layout_of_convolutions(shard.saved) != tensors.convolution_weights)
      throw FileError("{}: has another layout of convolution weights than the first shard", shard.file->path());
    for (const train::SavedTensor& saved : shard.saved.tensors) {
      try {
        const TranslatedName to = names.to_module(saved.name);
        layout.entries.push_back({saved.name, to.name, saved.dtype, to.layout});
        if (to.name.empty()) continue;
        tensors.push_back({to.name, in_module_layout(tensor_in(shard, saved), to.layout, saved.name)});
      } catch (const FileError& error) {
        throw FileError("{}: {}", shard.file->path(), error.what());
      }
    }
  }
  layout.metadata = files.shards.front().saved.metadata;
  layout.config = files.config;
  return tensors;
}

LoadedPretrained load_here(nn::Module& module, const std::string& path, const LoadPretrainedOptions& options) {
  const NoGrad no_grad;
  const NameTranslator names(options.names);
  const PretrainedFiles files = open_pretrained(path);
  check_model_type(files, options.names.model_type);
  LoadedPretrained loaded;
  std::vector<std::string> unread;
  for (const PretrainedFile& shard : files.shards)
    for (std::string& name : check_unread(shard, names, module, options.strict)) unread.push_back(std::move(name));
  const FileTensors tensors = translated(files, names, loaded.layout);
  try {
    loaded.keys = module.load_state_dict(tensors, {.strict = options.strict});
  } catch (const InvalidArgument& error) {
    throw FileError("{}: {}", path, error.what());
  }
  loaded.keys.unexpected_keys.insert(loaded.keys.unexpected_keys.end(), unread.begin(), unread.end());
  for (PretrainedLayout::Entry& entry : loaded.layout.entries)
    if (std::count(loaded.keys.unexpected_keys.begin(), loaded.keys.unexpected_keys.end(), entry.in_module) != 0)
      entry.in_module.clear();
  return loaded;
}

// -- saving

bool is_float_of_file(DType type) {
  return type == DType::kFloat32 || type == DType::kFloat16 || type == DType::kBFloat16 || type == DType::kFloat64;
}

Tensor as_type(const Tensor& tensor, DType type) {
  const auto is_convertible = [](DType each) {
    return each == DType::kFloat32 || each == DType::kFloat16 || each == DType::kBFloat16;
  };
  if (tensor.dtype() == type || !is_convertible(tensor.dtype())) return tensor;
  if (is_convertible(type)) return cast(tensor, type);
  if (type != DType::kFloat64) return tensor;
  const Tensor floats = cast(tensor, DType::kFloat32).to(cpu_device());
  const Tensor doubles = Tensor::empty(tensor.shape(), type, cpu_device());
  std::copy_n(floats.data<float>(), floats.count(), doubles.data<double>());
  return doubles;
}

struct Written {
  std::vector<NamedTensor> tensors;
  std::map<std::string, std::string> metadata;
};

// A tensor of the module in the layout and type of a file.
Tensor for_file(const Tensor& tensor, bool is_convolution, const WeightLayout& layout, DType type,
                const std::string& name) {
  const Tensor value = tensor.to(cpu_device());
  return as_type(is_convolution ? nn::channels_first(value) : in_file_layout(value, layout, name), type);
}

Written by_layout(const nn::Module& module, const PretrainedLayout& layout) {
  const auto convolutions = nn::convolutions_of(module);
  const auto order = layout.metadata.find("convolution_weights");
  const bool permutes = order == layout.metadata.end() || order->second != "OHWI";
  std::unordered_map<std::string, Tensor> own;
  const std::vector<NamedTensor> all = nn::merged_state_dict(module);
  for (const NamedTensor& entry : all) own.emplace(entry.name, entry.tensor);
  if (layout.entries.empty())
    throw InvalidArgument(
        "save_pretrained: the layout is empty: only load_pretrained() on the rank that reads fills it");
  Written written{{}, layout.metadata};
  std::set<const std::byte*> covered;
  for (const PretrainedLayout::Entry& entry : layout.entries) {
    if (entry.in_module.empty()) continue;
    const auto found = own.find(entry.in_module);
    if (found == own.end())
      throw InvalidArgument("save_pretrained: the module has no tensor '{}', which the layout calls '{}'",
                            entry.in_module, entry.in_file);
    covered.insert(found->second.buffer().data());
    const bool is_convolution = permutes && convolutions.count(entry.in_module) != 0;
    written.tensors.push_back(
        {entry.in_file, for_file(found->second, is_convolution, entry.layout, entry.dtype, entry.in_file)});
  }
  for (const auto& [name, tensor] : all)
    if (covered.count(tensor.buffer().data()) == 0)
      throw InvalidArgument("save_pretrained: the layout has no name for '{}' {}: save without .layout, by .names",
                            name, tensor.shape().text());
  return written;
}

// In the order of Python's library: larger types first, then by name.
Written by_names(const nn::Module& module, const NameMapping& mapping, DType type) {
  if (!is_float_of_file(type))
    throw InvalidArgument("save_pretrained: dtype is {}, expected float32, float16, bfloat16 or float64",
                          name_of(type));
  const NameTranslator names(mapping);
  const auto convolutions = nn::convolutions_of(module);
  Written written{{}, {{"format", "pt"}}};
  for (const auto& [name, tensor] : nn::merged_state_dict(module)) {
    const TranslatedName to = names.to_file(name);
    written.tensors.push_back({to.name, for_file(tensor, convolutions.count(name) != 0, to.layout, type, to.name)});
  }
  std::stable_sort(written.tensors.begin(), written.tensors.end(), [](const NamedTensor& a, const NamedTensor& b) {
    const std::size_t size_a = size_of(a.tensor.dtype()), size_b = size_of(b.tensor.dtype());
    return size_a != size_b ? size_a > size_b : a.name < b.name;
  });
  return written;
}

void write_config(const std::string& folder, const std::string& text) {
  train::replace_durably("save_pretrained", folder + "/config.json",
                         [&](train::DurableFile& file) { file.write(text); });
}

}  // namespace

LoadedPretrained load_pretrained(nn::Module& module, const std::string& path, const LoadPretrainedOptions& options) {
  if (options.group == nullptr || options.group->world_size() == 1) return load_here(module, path, options);
  ProcessGroup& group = *options.group;
  check_same_model(group, module, "load_pretrained");
  LoadedPretrained loaded;
  const auto read = [&]() -> std::string {
    if (group.rank() != 0) return "";
    loaded = load_here(module, path, options);
    return json::array({json(loaded.keys.missing_keys), json(loaded.keys.unexpected_keys)}).dump();
  };
  const json keys = json::parse(gather_on_all_ranks(group, read, {"loading weights"}).front());
  loaded.keys = {keys.at(0).get<std::vector<std::string>>(), keys.at(1).get<std::vector<std::string>>()};
  replace_by_roots(group, module.state_dict(), "pretrained weights");
  return loaded;
}

void save_pretrained(const nn::Module& module, const std::string& folder, const SavePretrainedOptions& options) {
  const NoGrad no_grad;
  if (folder.empty()) throw InvalidArgument("save_pretrained: the folder's name is empty");
  if (options.max_shard_size < 0)
    throw InvalidArgument("save_pretrained: max_shard_size is {}, expected a number of bytes, or 0 for one file",
                          options.max_shard_size);
  const Written written =
      options.layout != nullptr ? by_layout(module, *options.layout) : by_names(module, options.names, options.dtype);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw FileError("save_pretrained: {}: the folder cannot be made: {}", folder, error.message());
  const bool is_one_file = options.max_shard_size == 0;
  write_pretrained(folder, written.tensors, written.metadata,
                   is_one_file ? UINT64_MAX : static_cast<std::uint64_t>(options.max_shard_size));
  const bool has_own = !options.config.empty();
  if (has_own || (options.layout != nullptr && !options.layout->config.empty()))
    write_config(folder, has_own ? options.config : options.layout->config);
}

}  // namespace lockstep::models
