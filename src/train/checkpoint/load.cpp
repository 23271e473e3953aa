#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "lockstep/comm/agreement.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/tensor/random.h"
#include "src/ddp/checks/replicas.h"
#include "src/optim/swapped_weights.h"
#include "src/train/checkpoint/checkpoint_group.h"
#include "src/train/checkpoint/files.h"
#include "src/train/checkpoint/hook_state.h"
#include "src/train/checkpoint/own.h"
#include "src/train/checkpoint/owner.h"
#include "src/train/checkpoint/random.h"
#include "src/train/checkpoint/read.h"
#include "src/train/checkpoint/shards.h"

namespace lockstep {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

using namespace checkpoint;

constexpr const char* kAnotherModel = "is of another model";
constexpr const char* kOtherOptions =
    "is of an optimizer with other options (momentum, groups, loss_scaler), of the same model: give this one the "
    "options of the run that "
    "saved it (of model_parallel, earlier versions kept the first stage's optimizer alone: load without .optimizer)";

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
void check_names(const std::vector<SavedTensor>& saved, const std::vector<Wanted>& wanted, const std::string& path,
                 const char* meaning) {
  std::unordered_map<std::string_view, const SavedTensor*> by_name;
  for (const SavedTensor& tensor : saved) by_name.emplace(tensor.name, &tensor);
  std::unordered_set<std::string_view> names;
  for (const auto& [name, dtype, shape] : wanted) {
    names.insert(name);
    const auto found = by_name.find(name);
    if (found == by_name.end()) throw FileError("{}: {}: it has no tensor '{}' {}", path, meaning, name, shape.text());
    const SavedTensor& tensor = *found->second;
    if (tensor.shape != shape || tensor.dtype != dtype)
      throw FileError("{}: {}: '{}' is {} {} there, {} {} here", path, meaning, name, name_of(tensor.dtype),
                      tensor.shape.text(), name_of(dtype), shape.text());
  }
  for (const SavedTensor& tensor : saved)
    if (names.count(tensor.name) == 0)
      throw FileError("{}: {}: '{}' {} does not exist here", path, meaning, tensor.name, tensor.shape.text());
}

// Counts of steps were those of groups once: each parameter of a group gets its group's.
void spread_counts_of_groups(LoadedCheckpoint& loaded, optim::Optimizer& optimizer) {
  for (const optim::StatePart& part : optimizer.state_parts()) {
    if (part.is_slice || part.whole.dims() != 2 || !part.name.ends_with(".clock")) continue;
    const auto is_count = [&](const SavedTensor& saved) {
      return saved.name == part.name && saved.dtype == part.values.dtype();
    };
    const auto saved = std::find_if(loaded.optimizer.begin(), loaded.optimizer.end(), is_count);
    if (saved == loaded.optimizer.end() || saved->shape != Shape{part.whole[1]}) continue;
    std::vector<std::byte>& rows = loaded.memory.emplace_back();
    for (std::int64_t row = 0; row < part.whole[0]; ++row)
      rows.insert(rows.end(), saved->data.begin(), saved->data.end());
    saved->shape = part.whole;
    saved->data = rows;
  }
}

CheckpointState state_of(const json& state) {
  return {state.at("step"), state.at("epoch"), state.at("world_size"), state.at("folder")};
}

// The parameters in the order of the buckets, where a pass had planned these; empty: it had not, or was none of several
// ranks.
std::vector<std::string> bucket_order_of(const json& state) {
  std::vector<std::string> names;
  if (!state.value("buckets_rebuilt", false)) return names;
  for (const json& bucket : state.at("buckets"))
    for (const json& name : bucket) names.push_back(name.get<std::string>());
  return names;
}

// The same bits need the same buckets. Where other parameters are reduced (some were frozen, say), the first pass plans
// anew.
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
    const std::string kind =
        loaded.state.contains("optimizer") ? loaded.state.at("optimizer").at("kind").get<std::string>() : "none";
    if (kind != parts.optimizer->kind())
      throw FileError("{}: was saved with optimizer {}, this one is {}", state_path, kind, parts.optimizer->kind());
    if (const auto lr = loaded.state.at("optimizer").at("lr").get<float>(); !optim::is_rate(lr))
      throw FileError("{}: the learning rate {} is none: a finite number that is not negative was expected", state_path,
                      lr);
    check_names(loaded.optimizer, wanted_of(parts.optimizer->state_parts()), (folder / kOptimizer).string(),
                kOtherOptions);
  }
  if (parts.ema) {
    if (loaded.files.count(kAverages) == 0)
      throw FileError("{}: holds no averages of weights: it was saved without .ema", loaded.folder);
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
std::vector<std::string> lines_of(const CheckpointParts& parts, const OwnTensors& own) {
  std::vector<std::string> lines;
  const auto add = [&](Part part, const char* what, const std::vector<Wanted>& tensors) {
    for (const auto& [name, dtype, shape] : tensors)
      if (!own.has(part, name)) lines.push_back(fmt::format("{} '{}' {} {}", what, name, name_of(dtype), shape.text()));
  };
  lines.push_back(parts.optimizer ? "optimizer " + parts.optimizer->kind() : "no optimizer");
  if (parts.optimizer && parts.optimizer->slice_ranks() > 1)
    lines.push_back(fmt::format("its state in slices on {} ranks", parts.optimizer->slice_ranks()));
  if (parts.optimizer) add(Part::kOptimizer, "optimizer state", wanted_of(parts.optimizer->state_parts()));
  lines.push_back(parts.ema ? "averages" : "no averages");
  if (parts.ema) add(Part::kAverages, "average", wanted_of(parts.ema->state()));
  if (parts.ddp)
    for (const HookState& state : states_of(parts.ddp->comm_hook()))
      lines.push_back(fmt::format("state of a comm hook, '{}' {} x {}", state.name, name_of(state.dtype), state.count));
  lines.push_back(parts.sampler ? description_of(*parts.sampler.get()) : "no sampler");
  lines.push_back(parts.ddp ? "a ddp" : "no ddp");
  lines.push_back(parts.program ? "a program's state" : "no program's state");
  return lines;
}

void copy_tensor(const SavedTensor& source, const Tensor& tensor) {
  if (source.data.empty()) return;
  Device& device = tensor.device();
  device.upload(tensor.buffer().data(), source.data.data(), source.data.size(), device.default_stream());
  tensor.mark_changed();
}

// A look-up of saved tensors by their names.
class SavedTensorsByName {
 public:
  explicit SavedTensorsByName(const std::vector<SavedTensor>& saved) {
    for (const SavedTensor& tensor : saved) by_name_.emplace(tensor.name, &tensor);
  }
  void copy_to(const NamedTensor& entry) const {
    if (const auto found = by_name_.find(entry.name); found != by_name_.end())
      copy_tensor(*found->second, entry.tensor);
  }

 private:
  std::unordered_map<std::string_view, const SavedTensor*> by_name_;
};

void copy_tensors(const std::vector<SavedTensor>& saved, const std::vector<NamedTensor>& wanted) {
  const SavedTensorsByName by_name(saved);
  for (const NamedTensor& entry : wanted) by_name.copy_to(entry);
}

// Names, types and shapes, for the ranks that have not read them.
json description_of(const std::vector<SavedTensor>& tensors) {
  json all = json::array();
  for (const SavedTensor& tensor : tensors) {
    const auto extents = tensor.shape.extents();
    all.push_back(
        {tensor.name, static_cast<int>(tensor.dtype), std::vector<std::int64_t>(extents.begin(), extents.end())});
  }
  return all;
}

ProgramState load_program(ProcessGroup* group, const std::optional<LoadedCheckpoint>& loaded, const json& state) {
  ProgramState program{state.value("program", std::string())};
  for (const json& each : state.at("program_tensors"))
    program.tensors.push_back(
        {each.at(0).get<std::string>(),
         Tensor::empty(Shape(each.at(2).get<std::vector<std::int64_t>>()), static_cast<DType>(each.at(1).get<int>()))});
  if (loaded) copy_tensors(loaded->program, program.tensors);
  if (group != nullptr) replace_by_roots(*group, program.tensors, "checkpoint program state");
  return program;
}

// The result of rank 0, as it travels to the others: first letter N (nothing: what is there instead follows), A (wrong
// argument) or E (an error follows), S (a state follows).
std::string read_on_rank_zero(const char* operation, const std::string& folder, const CheckpointParts& parts,
                              const OwnTensors& own, int ranks, std::optional<LoadedCheckpoint>& loaded) {
  if (folder.empty()) return fmt::format("A{}: the folder's name is empty", operation);
  try {
    std::string why_none;
    const auto found = find_checkpoint(folder, why_none);
    if (!found) {
      check_and_note_load(folder, nullptr, parts.overwrite);
      return "N" + why_none;
    }
    loaded = read_checkpoint(*found);
    if (parts.optimizer) spread_counts_of_groups(*loaded, *parts.optimizer.get());
    check_against(*loaded, parts);
    json message = loaded->state;
    message["folder"] = loaded->folder;
    if (parts.program) message["program_tensors"] = description_of(loaded->program);
    state_of(message);  // what is missing must be missed before anything is changed
    for (int rank = 0; rank < ranks; ++rank) random_of(message, rank, ranks);
    bucket_order_of(message);
    message["own_bytes"] = plan_own(*loaded, own, ranks, static_cast<bool>(parts.ddp));
    check_and_note_load(folder, &*loaded, parts.overwrite);
    if (const std::string warning = warning_of_random(message, ranks); !warning.empty())
      log::warn("{}: {}: {}", operation, loaded->folder, warning);
    return "S" + message.dump();
  } catch (const Error& error) {
    return fmt::format("E{}", error.what());
  } catch (const std::exception& error) {
    return fmt::format("E{}: the checkpoint cannot be read: {}", folder, error.what());
  }
}

// One tensor after the other, whole, from rank 0; each rank keeps its slice.
void load_slices(ProcessGroup& group, const std::optional<LoadedCheckpoint>& loaded, optim::Optimizer& optimizer) {
  static const std::vector<SavedTensor> kNone;
  const SavedTensorsByName saved(loaded ? loaded->optimizer : kNone);
  std::vector<NamedTensor> counts;  // that all ranks have
  for (const optim::StatePart& part : optimizer.state_parts()) {
    const Tensor whole = Tensor::empty(part.whole, part.values.dtype());
    const std::vector<NamedTensor> sent = {{part.name, whole}};
    saved.copy_to(sent.front());
    replace_by_roots(group, sent, "checkpoint optimizer state");
    const Buffer own =
        whole.buffer().window(static_cast<std::size_t>(part.begin) * size_of(whole.dtype()), part.values.bytes());
    part.values.copy_from(Tensor::wrap(own, part.values.shape(), whole.dtype()));
    if (!part.is_slice) counts.push_back({part.name, part.values});
  }
  check_replicas_equal(group, counts, "counts of the optimizer's steps from the checkpoint");
}

// From rank 0, which read them, to all; but for what is each rank's `own`, of which rank 0's is among them.
void load_tensors(ProcessGroup* group, const std::optional<LoadedCheckpoint>& loaded, const CheckpointParts& parts,
                  const OwnTensors* own) {
  const auto load_part = [&](Part part, const std::vector<NamedTensor>& tensors,
                             std::vector<SavedTensor> LoadedCheckpoint::*saved, const char* sent, const char* checked) {
    if (loaded) copy_tensors(*loaded.*saved, tensors);
    if (group == nullptr) return;
    const std::vector<NamedTensor> shared = own == nullptr ? tensors : own->shared(part, tensors);
    replace_by_roots(*group, shared, sent);
    check_replicas_equal(*group, shared, checked);
  };
  load_part(Part::kModel, parts.model.state_dict(), &LoadedCheckpoint::model, "checkpoint weights",
            "weights from the checkpoint");
  if (parts.optimizer && parts.optimizer->slice_ranks() > 1)
    load_slices(*group, loaded, *parts.optimizer.get());
  else if (parts.optimizer)
    load_part(Part::kOptimizer, parts.optimizer->state(), &LoadedCheckpoint::optimizer, "checkpoint optimizer state",
              "optimizer state from the checkpoint");
  if (parts.ema)
    load_part(Part::kAverages, parts.ema->state(), &LoadedCheckpoint::averages, "checkpoint averages",
              "averages from the checkpoint");
  if (parts.ddp) restore_hook_state(parts.ddp->comm_hook(), loaded ? &loaded->hook : nullptr, group);
}

// This rank's own tensors as they were saved, in the memory of the file that holds them. FileError on all ranks where
// one's do not fit.
std::vector<SavedTensor> own_tensors_in(const CallGroup& group, const std::vector<std::byte>& file,
                                        const OwnTensors& own, const std::string& folder) {
  std::vector<SavedTensor> saved;
  std::string refusal;
  if (group.rank() != 0) {
    const std::string path = folder + "/" + rank_name(group.rank(), group.world_size());
    try {
      saved = parse_file(file, path).tensors;
      check_names(saved, wanted_of(own.all()), path, kAnotherModel);
    } catch (const Error& error) {
      refusal = error.what();
    }
  }
  const std::vector<std::string> refusals = group.get()->all_gather_text(refusal, {.purpose = {"checkpoint"}});
  for (std::size_t rank = 0; rank < refusals.size(); ++rank)
    if (!refusals[rank].empty()) throw FileError("rank {}: {}", rank, refusals[rank]);
  return saved;
}

std::string refusal_of_load(const CallGroup& group, const CheckpointParts& parts) {
  if (!group.refusal().empty()) return group.refusal();
  const std::string swapped = optim::first_swapped(parts.model.state_dict());
  if (swapped.empty()) return "";
  return fmt::format(
      "parameter '{}' holds its average at the moment, by ema.swapped(): when that scope ends, it would put the "
      "weights of before in the "
      "place of those that are loaded: end it first",
      swapped);
}

// Collective, with rank 0's state: what nothing speaks against any more.
CheckpointState apply(const CallGroup& ranks, const json& state, const std::optional<LoadedCheckpoint>& loaded,
                      const CheckpointParts& parts, const OwnTensors& own) {
  const auto own_bytes = state.at("own_bytes").get<std::vector<std::size_t>>();
  const std::vector<std::byte> own_file = scatter_own(ranks, loaded ? &*loaded : nullptr, own_bytes);
  if (own_bytes.empty()) {
    load_tensors(ranks.get(), loaded, parts, nullptr);
  } else {
    const std::vector<SavedTensor> saved = own_tensors_in(ranks, own_file, own, state.at("folder"));
    load_tensors(ranks.get(), loaded, parts, &own);
    copy_tensors(saved, own.all());
  }
  if (parts.program) *parts.program.get() = load_program(ranks.get(), loaded, state);
  if (parts.ddp) rebuild_buckets(*parts.ddp.get(), state);
  if (parts.sampler) parts.sampler->restore(state.at("sampler").get<data::SamplerState>());
  if (parts.optimizer) parts.optimizer->set_lr(state.at("optimizer").at("lr"));
  set_random_state(random_of(state, ranks.rank(), ranks.world_size()));
  return state_of(state);
}

// Nullopt: there is none, and `why_none` says what rank 0 found instead.
std::optional<CheckpointState> load(const char* operation, const std::string& folder, const CheckpointParts& parts,
                                    std::string& why_none) {
  const CallGroup ranks(parts);
  ProcessGroup* const group = ranks.get();
  refuse_together(ranks, operation, refusal_of_load(ranks, parts));
  const OwnTensors own(parts);
  if (group != nullptr) {
    check_same_model(*group, parts.model, operation,
                     parts.ddp ? parts.ddp->ignored_parameters() : std::vector<std::string>());
    check_same_on_all_ranks(*group, operation, lines_of(parts, own), "gave different parts");
  }
  std::optional<LoadedCheckpoint> loaded;
  std::string outcome;
  if (ranks.rank() == 0) outcome = read_on_rank_zero(operation, folder, parts, own, ranks.world_size(), loaded);
  if (group != nullptr) outcome = group->broadcast_text(outcome, 0, {.purpose = {"checkpoint"}});
  if (outcome[0] == 'A') throw InvalidArgument("{}", outcome.substr(1));
  if (outcome[0] == 'E') throw FileError("{}", outcome.substr(1));
  if (outcome[0] == 'N') {
    why_none = outcome.substr(1);
    return std::nullopt;
  }
  return apply(ranks, json::parse(outcome.substr(1)), loaded, parts, own);
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
