#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/core/error.h"
#include "lockstep/tensor/random.h"
#include "src/ddp/replicas.h"
#include "src/train/checkpoint_files.h"
#include "src/train/checkpoint_read.h"
#include "src/train/hook_state.h"

namespace lockstep {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

using namespace checkpoint;

constexpr const char* kAnotherModel = "is of another model";
constexpr const char* kOtherOptions =
    "is of an optimizer with other options (momentum, groups, loss_scaler), of the same model: give this one the options of the run that "
    "saved it";

// A tensor that a part of the training has, here or, of slices, on other ranks.
struct Wanted {
  std::string name;
  DType dtype;
  Shape shape;
};
std::vector<Wanted> wanted_of(const std::vector<NamedTensor>& tensors) {
  std::vector<Wanted> wanted;
  for (const auto& [name, tensor] : tensors) wanted.push_back({name, tensor.dtype(), tensor.shape()});
  return wanted;
}
std::vector<Wanted> wanted_of(const std::vector<optim::StatePart>& parts) {
  std::vector<Wanted> wanted;
  for (const optim::StatePart& part : parts) wanted.push_back({part.name, part.values.dtype(), part.whole});
  return wanted;
}

// Throws unless `saved` holds exactly the wanted tensors; says what that means, and the first difference.
void check_names(const std::vector<SavedTensor>& saved, const std::vector<Wanted>& wanted, const std::string& path, const char* meaning) {
  const auto with_name = [](const auto& list, const std::string& name) {
    return std::find_if(list.begin(), list.end(), [&](const auto& entry) { return entry.name == name; });
  };
  for (const auto& [name, dtype, shape] : wanted) {
    const std::string& sought = name;  // a lambda takes no structured binding in Clang 14
    const auto found = with_name(saved, sought);
    if (found == saved.end()) throw FileError("{}: {}: it has no tensor '{}' {}", path, meaning, name, shape.text());
    if (found->shape != shape || found->dtype != dtype)
      throw FileError("{}: {}: '{}' is {} {} there, {} {} here", path, meaning, name, name_of(found->dtype), found->shape.text(),
                      name_of(dtype), shape.text());
  }
  for (const SavedTensor& tensor : saved)
    if (with_name(wanted, tensor.name) == wanted.end())
      throw FileError("{}: {}: '{}' {} does not exist here", path, meaning, tensor.name, tensor.shape.text());
}

// Counts of steps were those of groups once: each parameter of a group gets its group's.
void spread_counts_of_groups(LoadedCheckpoint& loaded, optim::Optimizer& optimizer) {
  for (const optim::StatePart& part : optimizer.state_parts()) {
    const auto is_count = [&](const SavedTensor& saved) { return saved.name == part.name && saved.dtype == part.values.dtype(); };
    const auto saved = std::find_if(loaded.optimizer.begin(), loaded.optimizer.end(), is_count);
    if (saved == loaded.optimizer.end() || part.is_slice || part.whole.dims() != 2 || saved->shape != Shape{part.whole[1]}) continue;
    std::vector<std::byte>& rows = loaded.memory.emplace_back();
    for (std::int64_t row = 0; row < part.whole[0]; ++row) rows.insert(rows.end(), saved->data.begin(), saved->data.end());
    saved->shape = part.whole;
    saved->data = rows;
  }
}

CheckpointState state_of(const json& state) { return {state.at("step"), state.at("epoch"), state.at("world_size"), state.at("folder")}; }

RandomState random_of(const json& state) {
  const json& random = state.at("random");
  return {random.at("seed"), random.at("next_stream"), random.value("next_dropout", std::uint64_t{0})};
}

// The parameters in the order of the buckets, where a pass had planned these; empty: it had not, or was none of several ranks.
std::vector<std::string> bucket_order_of(const json& state) {
  std::vector<std::string> names;
  if (!state.value("buckets_rebuilt", false)) return names;
  for (const json& bucket : state.at("buckets"))
    for (const json& name : bucket) names.push_back(name.get<std::string>());
  return names;
}

// The same bits need the same buckets. Where other parameters are reduced (some were frozen, say), the first pass plans anew.
void rebuild_buckets(DistributedDataParallel& ddp, const json& state) {
  const std::vector<std::string> order = bucket_order_of(state);
  std::vector<std::string> saved = order, reduced;
  for (const GradientInfo& gradient : ddp.reducer().gradients()) reduced.push_back(gradient.name);
  std::sort(saved.begin(), saved.end());
  std::sort(reduced.begin(), reduced.end());
  if (saved == reduced && ddp.rebuilds_buckets()) ddp.rebuild_buckets(order);
}

void check_against(const LoadedCheckpoint& loaded, const CheckpointParts& parts) {
  const fs::path folder(loaded.folder);
  check_names(loaded.model, wanted_of(parts.model.state_dict()), (folder / kModel).string(), kAnotherModel);
  const std::string state_path = (folder / kState).string();
  if (parts.optimizer) {
    const std::string kind = loaded.state.contains("optimizer") ? loaded.state.at("optimizer").at("kind").get<std::string>() : "none";
    if (kind != parts.optimizer->kind())
      throw FileError("{}: was saved with optimizer {}, this one is {}", state_path, kind, parts.optimizer->kind());
    if (const auto lr = loaded.state.at("optimizer").at("lr").get<float>(); !optim::is_rate(lr))
      throw FileError("{}: the learning rate {} is none: a finite number that is not negative was expected", state_path, lr);
    check_names(loaded.optimizer, wanted_of(parts.optimizer->state_parts()), (folder / kOptimizer).string(), kOtherOptions);
  }
  if (parts.ema) {
    if (loaded.files.count(kAverages) == 0) throw FileError("{}: holds no averages of weights: it was saved without .ema", loaded.folder);
    check_names(loaded.averages, wanted_of(parts.ema->state()), (folder / kAverages).string(), kAnotherModel);
  }
  if (parts.ddp) check_hook_state(parts.ddp->comm_hook(), loaded.hook, (folder / kHook).string());
  if (parts.sampler) {
    if (!loaded.state.contains("sampler")) throw FileError("{}: holds no sampler position", state_path);
    try {
      parts.sampler->check(loaded.state.at("sampler").get<data::SamplerState>());
    } catch (const InvalidArgument& error) {
      throw FileError("{}: {}", state_path, error.what());
    }
  }
}

// What the ranks must have in common beside the model: else one of them would be stopped when the others have loaded.
std::vector<std::string> lines_of(const CheckpointParts& parts) {
  std::vector<std::string> lines;
  const auto add = [&lines](const char* what, const std::vector<Wanted>& tensors) {
    for (const auto& [name, dtype, shape] : tensors)
      lines.push_back(fmt::format("{} '{}' {} {}", what, name, name_of(dtype), shape.text()));
  };
  lines.push_back(parts.optimizer ? "optimizer " + parts.optimizer->kind() : "no optimizer");
  if (parts.optimizer && parts.optimizer->slice_ranks() > 1)
    lines.push_back(fmt::format("its state in slices on {} ranks", parts.optimizer->slice_ranks()));
  if (parts.optimizer) add("optimizer state", wanted_of(parts.optimizer->state_parts()));
  lines.push_back(parts.ema ? "averages" : "no averages");
  if (parts.ema) add("average", wanted_of(parts.ema->state()));
  if (parts.ddp)
    for (const HookState& state : states_of(parts.ddp->comm_hook()))
      lines.push_back(fmt::format("state of a comm hook, '{}' {} x {}", state.name, name_of(state.dtype), state.count));
  lines.push_back(parts.sampler ? description_of(*parts.sampler.get()) : "no sampler");
  lines.push_back(parts.ddp ? "a ddp" : "no ddp");
  lines.push_back(parts.program ? "a program's state" : "no program's state");
  return lines;
}

void copy_tensors(const std::vector<SavedTensor>& saved, const std::vector<NamedTensor>& wanted) {
  for (const SavedTensor& source : saved)
    for (const auto& [name, tensor] : wanted)
      if (name == source.name && !source.data.empty()) {
        Device& device = tensor.device();
        device.upload(tensor.buffer().data(), source.data.data(), source.data.size(), device.default_stream());
        tensor.mark_changed();
      }
}

// Names, types and shapes, for the ranks that have not read them.
json description_of(const std::vector<SavedTensor>& tensors) {
  json all = json::array();
  for (const SavedTensor& tensor : tensors) {
    const auto extents = tensor.shape.extents();
    all.push_back({tensor.name, static_cast<int>(tensor.dtype), std::vector<std::int64_t>(extents.begin(), extents.end())});
  }
  return all;
}

ProgramState load_program(ProcessGroup* group, const std::optional<LoadedCheckpoint>& loaded, const json& state) {
  ProgramState program{state.value("program", std::string())};
  for (const json& each : state.at("program_tensors"))
    program.tensors.push_back({each.at(0).get<std::string>(), Tensor::empty(Shape(each.at(2).get<std::vector<std::int64_t>>()),
                                                                            static_cast<DType>(each.at(1).get<int>()))});
  if (loaded) copy_tensors(loaded->program, program.tensors);
  if (group != nullptr) replace_by_roots(*group, program.tensors, "checkpoint program state");
  return program;
}

// The result of rank 0, as it travels to the others: first letter N (nothing: what is there instead follows), A (wrong argument) or E (an
// error follows), S (a state follows).
std::string read_on_rank_zero(const char* operation, const std::string& folder, const CheckpointParts& parts,
                              std::optional<LoadedCheckpoint>& loaded) {
  if (folder.empty()) return fmt::format("A{}: the folder's name is empty", operation);
  try {
    std::string why_none;
    const auto found = find_checkpoint(folder, why_none);
    if (!found) return "N" + why_none;
    loaded = read_checkpoint(*found);
    if (parts.optimizer) spread_counts_of_groups(*loaded, *parts.optimizer.get());
    check_against(*loaded, parts);
    json message = loaded->state;
    message["folder"] = loaded->folder;
    if (parts.program) message["program_tensors"] = description_of(loaded->program);
    state_of(message);  // what is missing must be missed before anything is changed
    random_of(message);
    bucket_order_of(message);
    return "S" + message.dump();
  } catch (const Error& error) {
    return fmt::format("E{}", error.what());
  } catch (const std::exception& error) {
    return fmt::format("E{}: the checkpoint cannot be read: {}", folder, error.what());
  }
}

// One tensor after the other, whole, from rank 0; each rank keeps its slice.
void load_slices(ProcessGroup& group, const std::optional<LoadedCheckpoint>& loaded, optim::Optimizer& optimizer) {
  std::vector<NamedTensor> counts;  // that all ranks have
  for (const optim::StatePart& part : optimizer.state_parts()) {
    const Tensor whole = Tensor::empty(part.whole, part.values.dtype());
    const std::vector<NamedTensor> sent = {{part.name, whole}};
    if (loaded) copy_tensors(loaded->optimizer, sent);
    replace_by_roots(group, sent, "checkpoint optimizer state");
    const Buffer own = whole.buffer().window(static_cast<std::size_t>(part.begin) * size_of(whole.dtype()), part.values.bytes());
    part.values.copy_from(Tensor::wrap(own, part.values.shape(), whole.dtype()));
    if (!part.is_slice) counts.push_back({part.name, part.values});
  }
  check_replicas_equal(group, counts, "counts of the optimizer's steps from the checkpoint");
}

// From rank 0, which read them, to all.
void load_tensors(ProcessGroup* group, const std::optional<LoadedCheckpoint>& loaded, const CheckpointParts& parts) {
  const auto load_part = [&](const std::vector<NamedTensor>& tensors, std::vector<SavedTensor> LoadedCheckpoint::*saved, const char* sent,
                             const char* checked) {
    if (loaded) copy_tensors(*loaded.*saved, tensors);
    if (group == nullptr) return;
    replace_by_roots(*group, tensors, sent);
    check_replicas_equal(*group, tensors, checked);
  };
  load_part(parts.model.state_dict(), &LoadedCheckpoint::model, "checkpoint weights", "weights from the checkpoint");
  if (parts.optimizer && parts.optimizer->slice_ranks() > 1)
    load_slices(*group, loaded, *parts.optimizer.get());
  else if (parts.optimizer)
    load_part(parts.optimizer->state(), &LoadedCheckpoint::optimizer, "checkpoint optimizer state", "optimizer state from the checkpoint");
  if (parts.ema) load_part(parts.ema->state(), &LoadedCheckpoint::averages, "checkpoint averages", "averages from the checkpoint");
  if (parts.ddp) restore_hook_state(parts.ddp->comm_hook(), loaded ? &loaded->hook : nullptr, group);
}

// Nullopt: there is none, and `why_none` says what rank 0 found instead.
std::optional<CheckpointState> load(const char* operation, const std::string& folder, const CheckpointParts& parts, std::string& why_none) {
  const auto group = group_or_default(parts.group);
  check_group_of_slices(operation, parts, group.get());
  if (group) {
    check_same_model(*group, parts.model, operation);
    check_same_lines(*group, lines_of(parts), operation, "gave different parts");
  }
  std::optional<LoadedCheckpoint> loaded;
  std::string outcome;
  if (!group || group->rank() == 0) outcome = read_on_rank_zero(operation, folder, parts, loaded);
  if (group) outcome = group->broadcast_text(outcome, 0, {.purpose = {"checkpoint"}});
  if (outcome[0] == 'A') throw InvalidArgument("{}", outcome.substr(1));
  if (outcome[0] == 'E') throw FileError("{}", outcome.substr(1));
  if (outcome[0] == 'N') {
    why_none = outcome.substr(1);
    return std::nullopt;
  }
  const json state = json::parse(outcome.substr(1));
  load_tensors(group.get(), loaded, parts);
  if (parts.program) *parts.program.get() = load_program(group.get(), loaded, state);
  if (parts.ddp) rebuild_buckets(*parts.ddp.get(), state);
  if (parts.sampler) parts.sampler->restore(state.at("sampler").get<data::SamplerState>());
  if (parts.optimizer) parts.optimizer->set_lr(state.at("optimizer").at("lr"));
  set_random_state(random_of(state));
  return state_of(state);
}

}  // namespace

std::optional<CheckpointState> load_checkpoint(const std::string& folder, const CheckpointParts& parts) {
  std::string why_none;
  return load("load_checkpoint", folder, parts, why_none);
}

CheckpointState resume_checkpoint(const std::string& folder, const CheckpointParts& parts) {
  std::string why_none;
  if (auto state = load("resume_checkpoint", folder, parts, why_none)) return *std::move(state);
  throw FileError("resume_checkpoint: there is no checkpoint to go on from. {}", why_none);
}

}  // namespace lockstep
