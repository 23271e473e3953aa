// The sequence of a load, which all ranks run: check that the ranks give the same parts; rank 0 reads the files and
// compares them with the parts; then all ranks get its state and tensors. Nothing is changed before the last of these.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <unordered_set>

#include "lockstep/comm/agreement.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/tensor/random.h"
#include "src/ddp/checks/replicas.h"
#include "src/nn/module/older_names.h"
#include "src/optim/swapped_weights.h"
#include "src/train/checkpoint/background/background_save.h"
#include "src/train/checkpoint/checkpoint_plan.h"
#include "src/train/checkpoint/checkpoint_reader.h"
#include "src/train/checkpoint/folder/checkpoint_folder.h"
#include "src/train/checkpoint/rank_state.h"

namespace lockstep::train::checkpoint {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr const char* kAnotherModel = "is of another model";
constexpr const char* kOtherOptions =
    "is of an optimizer with other options (momentum, groups, loss_scaler), of the same model: give this one the "
    "options of the run that saved it (of model_parallel, earlier versions kept the first stage's optimizer alone: "
    "load without .optimizer)";

// -- comparing the checkpoint with the parts

// A tensor that the training has: here, or in slices on several ranks.
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

// Gives tensors of checkpoints of earlier versions the names that they have today.
void rename_older(std::vector<SavedTensor>& saved, const std::vector<Wanted>& wanted) {
  for (const Wanted& each : wanted) {
    const std::optional<std::string> older = nn::older_name_of(each.name);
    if (!older || SavedByName(saved).find(each.name) != nullptr) continue;
    for (SavedTensor& tensor : saved)
      if (tensor.name == *older) tensor.name = each.name;
  }
}

// Throws FileError with `meaning` and the first difference unless `saved` has exactly the wanted tensors.
void check_names(const std::vector<SavedTensor>& saved, const std::vector<Wanted>& wanted, const std::string& path,
                 const char* meaning) {
  const SavedByName by_name(saved);
  std::unordered_set<std::string_view> names;
  for (const auto& [name, dtype, shape] : wanted) {
    names.insert(name);
    const SavedTensor* const found = by_name.find(name);
    if (found == nullptr) throw FileError("{}: {}: it has no tensor '{}' {}", path, meaning, name, shape.text());
    if (found->shape != shape || found->dtype != dtype)
      throw FileError("{}: {}: '{}' is {} {} there, {} {} here", path, meaning, name, name_of(found->dtype),
                      found->shape.text(), name_of(dtype), shape.text());
  }
  for (const SavedTensor& tensor : saved)
    if (names.count(tensor.name) == 0)
      throw FileError("{}: {}: '{}' {} does not exist here", path, meaning, tensor.name, tensor.shape.text());
}

// Older versions counted steps for each group: each parameter gets the count of its group.
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

// The parameters in the order of the buckets, if a backward pass had planned these; otherwise {}.
std::vector<std::string> bucket_order_of(const json& state) {
  std::vector<std::string> names;
  if (!state.value("buckets_rebuilt", false)) return names;
  for (const json& bucket : state.at("buckets"))
    for (const json& name : bucket) names.push_back(name.get<std::string>());
  return names;
}

// The same buckets are needed to get the same bits. If other parameters are reduced now, for instance because some are
// frozen, the first pass plans the buckets anew.
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
      throw FileError("{}: the learning rate {} is invalid: expected a finite number that is not negative", state_path,
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

// The ranks must have these in common, besides the model. Otherwise a rank could fail after the others have loaded.
std::vector<std::string> lines_of(const CheckpointParts& parts, const OwnTensors& own) {
  std::vector<std::string> lines;
  const auto add = [&](Part part, const char* what, const std::vector<Wanted>& tensors) {
    for (const auto& [name, dtype, shape] : tensors)
      if (!own.has(part, name)) lines.push_back(fmt::format("{} '{}' {} {}", what, name, name_of(dtype), shape.text()));
  };
  lines.push_back(parts.optimizer ? "optimizer " + parts.optimizer->kind() : "no optimizer");
  if (parts.optimizer && parts.optimizer->slice_holders() > 1)
    lines.push_back(fmt::format("its state in slices on {} ranks", parts.optimizer->slice_holders()));
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

std::string refusal_of_load(const CallGroup& group, const CheckpointParts& parts) {
  if (!group.refusal().empty()) return group.refusal();
  const std::string swapped = optim::first_swapped(parts.model.state_dict());
  if (swapped.empty()) return "";
  return fmt::format(
      "parameter '{}' holds its average at the moment, by ema.swapped(): when that scope ends, it would put the "
      "weights of before in the place of those that are loaded: end it first",
      swapped);
}

// -- copying its tensors

void copy_tensor(const SavedTensor& source, const Tensor& tensor) {
  if (source.data.empty()) return;
  Device& device = tensor.device();
  device.upload(tensor.buffer().data(), source.data.data(), source.data.size(), device.default_stream());
  tensor.mark_changed();
}

void copy_tensors(const std::vector<SavedTensor>& saved, const std::vector<NamedTensor>& wanted) {
  const SavedByName by_name(saved);
  for (const NamedTensor& entry : wanted)
    if (const SavedTensor* const found = by_name.find(entry.name)) copy_tensor(*found, entry.tensor);
}

// Names, types and shapes of tensors, for the ranks that have not read them.
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
        {each.at(0).get<std::string>(), Tensor::empty(Shape(each.at(2).get<std::vector<std::int64_t>>()),
                                                      static_cast<DType>(each.at(1).get<int>()), cpu_device())});
  if (loaded) copy_tensors(loaded->program, program.tensors);
  if (group != nullptr) replace_by_roots(*group, program.tensors, "checkpoint program state");
  return program;
}

// Rank 0 sends one tensor after the other as a whole; each rank keeps its slice.
void load_slices(ProcessGroup& group, const std::optional<LoadedCheckpoint>& loaded, optim::Optimizer& optimizer) {
  static const std::vector<SavedTensor> kNone;
  const SavedByName saved(loaded ? loaded->optimizer : kNone);
  std::vector<NamedTensor> counts;  // that all ranks have
  for (const optim::StatePart& part : optimizer.state_parts()) {
    const Tensor whole = Tensor::empty(part.whole, part.values.dtype(), cpu_device());
    const std::vector<NamedTensor> sent = {{part.name, whole}};
    if (const SavedTensor* const found = saved.find(part.name)) copy_tensor(*found, whole);
    replace_by_roots(group, sent, "checkpoint optimizer state");
    const Buffer own =
        whole.buffer().window(static_cast<std::size_t>(part.begin) * size_of(whole.dtype()), part.values.bytes());
    part.values.copy_from(Tensor::wrap(own, part.values.shape(), whole.dtype()));
    if (!part.is_slice) counts.push_back({part.name, part.values});
  }
  check_replicas_equal(group, counts, "counts of the optimizer's steps from the checkpoint");
}

// Rank 0, which has read the tensors, sends them to all ranks, except for those that are each rank's own.
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
  if (parts.optimizer && parts.optimizer->slice_holders() > 1)
    load_slices(*group, loaded, *parts.optimizer.get());
  else if (parts.optimizer)
    load_part(Part::kOptimizer, parts.optimizer->state(), &LoadedCheckpoint::optimizer, "checkpoint optimizer state",
              "optimizer state from the checkpoint");
  if (parts.ema)
    load_part(Part::kAverages, parts.ema->state(), &LoadedCheckpoint::averages, "checkpoint averages",
              "averages from the checkpoint");
  if (parts.ddp) restore_hook_state(parts.ddp->comm_hook(), loaded ? &loaded->hook : nullptr, group);
}

// Collective: this rank's own tensors as they were saved, in the memory of the file that holds them. Throws on all
// ranks if those of one do not fit.
std::vector<SavedTensor> own_tensors_in(const CallGroup& group, const std::vector<std::byte>& file,
                                        const OwnTensors& own, const std::string& folder) {
  return on_all_ranks(group, [&] {
    std::vector<SavedTensor> saved;
    if (group.rank() == 0) return saved;  // they are in the files of the model, the optimizer and the averages
    const std::string path = folder + "/" + rank_name(group.rank(), group.world_size());
    saved = parse_file(file, path).tensors;
    rename_older(saved, wanted_of(own.all()));
    check_names(saved, wanted_of(own.all()), path, kAnotherModel);
    return saved;
  });
}

// -- the sequence

// The result of rank 0's reading, for all ranks. `state` is null if there is no checkpoint; `why_none` then says what
// is there instead.
struct ReadResult {
  std::string why_none;
  json state;
};

// On rank 0. Checks all that can be checked before anything is changed.
ReadResult read_for_all_ranks(const char* operation, const std::string& folder, const CheckpointParts& parts,
                              const OwnTensors& own, int ranks, std::optional<LoadedCheckpoint>& loaded) {
  ReadResult result;
  loaded = read_newest(operation, folder, result.why_none);
  if (!loaded) {
    check_and_note_load(folder, nullptr, parts.overwrite);
    return result;
  }
  if (parts.optimizer) spread_counts_of_groups(*loaded, *parts.optimizer.get());
  rename_older(loaded->model, wanted_of(parts.model.state_dict()));
  check_against(*loaded, parts);
  json& state = result.state = loaded->state;
  state["folder"] = loaded->folder;
  if (parts.program) state["program_tensors"] = description_of(loaded->program);
  state_of(state);  // these four throw if something is missing
  for (int rank = 0; rank < ranks; ++rank) random_of(state, rank, ranks);
  bucket_order_of(state);
  state["own_bytes"] = plan_own(*loaded, own, ranks, static_cast<bool>(parts.ddp));
  check_and_note_load(folder, &*loaded, parts.overwrite);
  if (const std::string warning = warning_of_random(state, ranks); !warning.empty())
    log::warn("{}: {}: {}", operation, loaded->folder, warning);
  return result;
}

// Collective: rank 0 reads the checkpoint into `loaded`, and all ranks get the result.
ReadResult read_on_rank_zero(GroupRef group, const char* operation, const std::string& folder,
                             const CheckpointParts& parts, const OwnTensors& own,
                             std::optional<LoadedCheckpoint>& loaded) {
  const auto read = [&]() -> std::string {
    if (group.rank() != 0) return "";
    if (folder.empty()) throw InvalidArgument("{}: the folder's name is empty", operation);
    try {
      const ReadResult result = read_for_all_ranks(operation, folder, parts, own, group.world_size(), loaded);
      const auto handler = result.state.is_null() ? json::error_handler_t::replace : json::error_handler_t::strict;
      return json::array({result.why_none, result.state}).dump(-1, ' ', /*ensure_ascii=*/false, handler);
    } catch (const Error& error) {
      throw FileError("{}", error.what());
    } catch (const std::exception& error) {
      throw FileError("{}: the checkpoint cannot be read: {}", folder, error.what());
    }
  };
  const json result = json::parse(gather_on_all_ranks(group, read, {"loading a checkpoint"}).front());
  return {result.at(0), result.at(1)};
}

// Collective: changes the parts to rank 0's state.
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

}  // namespace

std::optional<CheckpointState> load(const char* operation, const std::string& folder, const CheckpointParts& parts,
                                    std::string& why_none) {
  const CallGroup group(parts);
  await_own_save(group);
  refuse_on_all_ranks(group, operation, refusal_of_load(group, parts));
  std::optional<OwnTensors> prepared;
  std::vector<std::string> lines;
  on_all_ranks(group, [&] { lines = lines_of(parts, prepared.emplace(parts)); });
  const OwnTensors& own = *prepared;
  check_same_model(group, parts.model, operation,
                   parts.ddp ? parts.ddp->ignored_parameters() : std::vector<std::string>());
  check_same_on_all_ranks(group, operation, lines, "gave different parts");
  std::optional<LoadedCheckpoint> loaded;  // on rank 0
  ReadResult found = read_on_rank_zero(group, operation, folder, parts, own, loaded);
  why_none = std::move(found.why_none);
  if (found.state.is_null()) return std::nullopt;
  return apply(group, found.state, loaded, parts, own);
}

}  // namespace lockstep::train::checkpoint
