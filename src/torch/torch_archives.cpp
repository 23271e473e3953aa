#include <c10/util/Type.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <algorithm>
#include <filesystem>
#include <span>
#include <typeinfo>
#include <vector>

#include "lockstep/comm/agreement.h"
#include "lockstep/core/error.h"
#include "lockstep/torch_checkpoint.h"
#include "src/torch/torch_parameters.h"
#include "src/train/files/durable_file.h"

namespace lockstep {

namespace {

namespace fs = std::filesystem;

constexpr const char* kLatest = "latest";
constexpr std::size_t kHashCharacters = 64, kMostOfLatest = 4096;

std::string file_of_step(std::int64_t step) { return fmt::format("step-{:012}.pt", step); }

bool is_file_of_step(const std::string& name) {
  return name.size() >= std::string_view("step-000000000000.pt").size() && name.starts_with("step-") &&
         name.ends_with(".pt") &&
         std::all_of(name.begin() + 5, name.end() - 3, [](char c) { return c >= '0' && c <= '9'; });
}

std::vector<NamedTorchTensor> all_tensors(const torch::nn::Module& model) {
  std::vector<NamedTorchTensor> tensors = torch_parameters(model);
  for (NamedTorchTensor& buffer : torch_buffers(model)) tensors.push_back(std::move(buffer));
  return tensors;
}

// Where the optimizer's state has to be; the file names rank 0's device.
at::Device device_of(torch::optim::Optimizer& optimizer) {
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups())
    for (const at::Tensor& parameter : group.params()) return parameter.device();
  return at::kCPU;
}

// "torch::optim::SGD"
std::string kind_of(const torch::optim::Optimizer& optimizer) { return c10::demangle(typeid(optimizer).name()); }

// Attributes of an archive cannot have dots in their names, and so the tensors are numbered.
std::string key_of(const char* what, std::size_t i) { return fmt::format("{}{}", what, i); }

void check_group(const char* function, const TorchCheckpointParts& parts) {
  if (parts.group == nullptr) throw InvalidArgument("{}: TorchCheckpointParts::group is null", function);
}

std::string write_archive(const std::string& folder, const TorchCheckpointParts& parts) {
  torch::serialize::OutputArchive archive, model, optimizer;
  const std::vector<NamedTorchTensor> tensors = all_tensors(parts.model);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    model.write(key_of("name", i), c10::IValue(tensors[i].first));
    model.write(key_of("tensor", i), tensors[i].second.detach(), /*is_buffer=*/true);
  }
  parts.optimizer.save(optimizer);
  archive.write("tensors", c10::IValue(static_cast<std::int64_t>(tensors.size())));
  archive.write("step", c10::IValue(parts.step));
  archive.write("kind", c10::IValue(kind_of(parts.optimizer)));
  archive.write("model", model);
  archive.write("optimizer", optimizer);
  fs::create_directories(folder);
  const std::string name = file_of_step(parts.step), path = (fs::path(folder) / name).string();
  train::replace_durably("save_torch_checkpoint", path, [&](train::DurableFile& file) {
    archive.save_to([&](const void* data, std::size_t bytes) {
      file.write(std::span(static_cast<const std::byte*>(data), bytes));
      return bytes;
    });
  });
  const std::string hash = train::read_file(path).sha256;
  train::replace_durably("save_torch_checkpoint", (fs::path(folder) / kLatest).string(),
                         [&](train::DurableFile& file) { file.write(fmt::format("{} {}\n", hash, name)); });
  return path;
}

void remove_old(const std::string& folder, int keep, std::int64_t newest) {
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(folder))
    if (const std::string name = entry.path().filename().string(); is_file_of_step(name) && name < file_of_step(newest))
      files.push_back(name);
  std::sort(files.begin(), files.end());
  std::error_code ignored;  // an old file that stays does no harm
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep) < files.size() + 1; ++i)
    fs::remove(fs::path(folder) / files[i], ignored);
}

// The latest archive's bytes; empty if there is none.
std::vector<std::byte> read_archive(const std::string& folder, std::string& path) {
  const std::string latest = (fs::path(folder) / kLatest).string();
  if (!fs::exists(latest)) return {};
  const train::ReadFile line = train::read_file(latest, {.least = kHashCharacters, .most = kMostOfLatest});
  const std::string text(reinterpret_cast<const char*>(line.data.data()), line.data.size());
  const std::size_t end = text.find('\n');
  const std::string name = end == std::string::npos || end <= kHashCharacters
                               ? ""
                               : text.substr(kHashCharacters + 1, end - kHashCharacters - 1);
  if (!is_file_of_step(name))
    throw FileError("load_torch_checkpoint: {}: is damaged: expected a SHA-256 and a file's name", latest);
  path = (fs::path(folder) / name).string();
  train::ReadFile file = train::read_file(path);
  if (file.sha256 != text.substr(0, kHashCharacters))
    throw FileError("load_torch_checkpoint: {}: is damaged: its SHA-256 is not that in {}", path, latest);
  return std::move(file.data);
}

template <typename Value> Value read_value(torch::serialize::InputArchive& archive, const std::string& key) {
  c10::IValue value;
  archive.read(key, value);
  return value.to<Value>();
}

// The saved values in the model's order. Throws FileError if they are of another model.
std::vector<at::Tensor> values_for(const std::vector<NamedTorchTensor>& tensors, std::int64_t saved,
                                   torch::serialize::InputArchive& model, const std::string& path) {
  if (saved != static_cast<std::int64_t>(tensors.size()))
    throw FileError("load_torch_checkpoint: {}: has {} parameters and buffers, and the model has {}", path, saved,
                    tensors.size());
  std::vector<at::Tensor> values(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& [name, tensor] = tensors[i];
    const auto found = read_value<std::string>(model, key_of("name", i));
    if (found != name)
      throw FileError("load_torch_checkpoint: {}: has '{}' where the model has '{}'", path, found, name);
    model.read(key_of("tensor", i), values[i], /*is_buffer=*/true);
    if (values[i].sizes() != tensor.sizes() || values[i].scalar_type() != tensor.scalar_type())
      throw FileError("load_torch_checkpoint: {}: '{}' is {} there, and {} in the model", path, name,
                      described(values[i]), described(tensor));
  }
  return values;
}

// An archive that was read and fits this model and this class of optimizer.
struct LoadedArchive {
  std::int64_t step = 0;
  std::vector<NamedTorchTensor> tensors;
  std::vector<at::Tensor> values;
  torch::serialize::InputArchive optimizer;
};

// Calls it, with exceptions of PyTorch and of the file system as FileErrors.
template <typename Function> void reading_from(const std::string& path, const Function& function) {
  try {
    function();
  } catch (const fs::filesystem_error& error) {
    throw FileError("load_torch_checkpoint: {}", error.what());
  } catch (const c10::OutOfMemoryError& error) {
    throw Error(
        "load_torch_checkpoint: {}: the device has too little memory for a copy of the model and the "
        "optimizer's state: {}",
        path, error.what_without_backtrace());
  } catch (const c10::Error& error) {
    throw FileError("load_torch_checkpoint: {}: is not a checkpoint of this model and optimizer: {}", path,
                    error.what_without_backtrace());
  }
}

void parse_archive(const std::vector<std::byte>& bytes, const std::string& path, const TorchCheckpointParts& parts,
                   LoadedArchive& loaded) {
  torch::serialize::InputArchive archive, model;
  loaded.tensors = all_tensors(parts.model);
  archive.load_from(reinterpret_cast<const char*>(bytes.data()), bytes.size(), device_of(parts.optimizer));
  archive.read("model", model);
  archive.read("optimizer", loaded.optimizer);
  loaded.step = read_value<std::int64_t>(archive, "step");
  loaded.values = values_for(loaded.tensors, read_value<std::int64_t>(archive, "tensors"), model, path);
  if (const auto kind = read_value<std::string>(archive, "kind"); kind != kind_of(parts.optimizer))
    throw FileError("load_torch_checkpoint: {}: has the state of a {}, and the optimizer is a {}", path, kind,
                    kind_of(parts.optimizer));
}

void take_values(LoadedArchive& loaded, const TorchCheckpointParts& parts) {
  parts.optimizer.state().clear();  // load() adds to it
  parts.optimizer.load(loaded.optimizer);
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < loaded.tensors.size(); ++i) loaded.tensors[i].second.copy_(loaded.values[i]);
}

}  // namespace

std::string save_torch_checkpoint(const std::string& folder, const TorchCheckpointParts& parts) {
  check_group("save_torch_checkpoint", parts);
  std::string refusal;
  if (parts.step < 0) refusal = fmt::format("step is {}, expected 0 or more", parts.step);
  if (parts.keep < 1) refusal = fmt::format("keep is {}, expected 1 or more", parts.keep);
  refuse_on_all_ranks(parts.group, "save_torch_checkpoint", refusal);
  check_same_on_all_ranks(parts.group, "save_torch_checkpoint", {fmt::format("step {}", parts.step)},
                          "are at different steps");
  return on_all_ranks(parts.group, [&]() -> std::string {
    if (parts.group->rank() != 0) return "";
    try {
      std::string path = write_archive(folder, parts);
      remove_old(folder, parts.keep, parts.step);
      return path;
    } catch (const fs::filesystem_error& error) {
      throw FileError("save_torch_checkpoint: {}", error.what());
    } catch (const c10::Error& error) {
      throw FileError("save_torch_checkpoint: {}: {}", folder, error.what_without_backtrace());
    }
  });
}

std::optional<std::int64_t> load_torch_checkpoint(const std::string& folder, const TorchCheckpointParts& parts) {
  check_group("load_torch_checkpoint", parts);
  ProcessGroup& group = *parts.group;
  std::string path;
  std::vector<std::byte> bytes;
  on_all_ranks(group, [&] {
    if (group.rank() == 0) reading_from(folder, [&] { bytes = read_archive(folder, path); });
  });
  std::int64_t count = static_cast<std::int64_t>(bytes.size());
  group.broadcast(std::span(&count, 1), 0, {.purpose = {"checkpoint size"}});
  if (count == 0) return std::nullopt;
  on_all_ranks(group, [&] { bytes.resize(static_cast<std::size_t>(count)); });
  group.broadcast(bytes.data(), bytes.size(), DType::kUInt8, 0, {.purpose = {"checkpoint"}});
  if (path.empty()) path = folder;
  LoadedArchive loaded;
  // No rank changes anything before all have read the archive.
  on_all_ranks(group, [&] { reading_from(path, [&] { parse_archive(bytes, path, parts, loaded); }); });
  on_all_ranks(group, [&] { reading_from(path, [&] { take_values(loaded, parts); }); });
  return loaded.step;
}

}  // namespace lockstep
