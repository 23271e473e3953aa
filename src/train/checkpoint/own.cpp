#include "src/train/checkpoint/own.h"

#include <algorithm>
#include <cstring>

#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "src/ddp/wrapper/agreed_options.h"
#include "src/optim/swapped_weights.h"
#include "src/tensor/tensor_map.h"
#include "src/train/checkpoint/files.h"
#include "src/train/checkpoint/shards.h"

namespace lockstep::checkpoint {

namespace {

constexpr const char* kPurposeOfOwn = "checkpoint of what is each rank's own";

std::string name_in(Part part, const std::string& name) {
  return (part == Part::kModel ? "model/" : part == Part::kOptimizer ? "optimizer/" : "averages/") + name;
}

// "conv1.weight" of "conv1.weight.momentum".
std::string parameter_of(const std::string& state) { return state.substr(0, state.rfind('.')); }

// The names of what all ranks had of their own, as a rank's file has them.
std::vector<std::string> names_in(const ReadFile& file, const std::string& path) {
  std::vector<std::string> names;
  for (const SavedTensor& tensor : parse_file(file.data, path).tensors)
    names.push_back(tensor.name.substr(tensor.name.find('/') + 1));
  return names;
}

}  // namespace

OwnTensors::OwnTensors(const CheckpointParts& parts) {
  if (!parts.ddp || parts.ddp->ignored_parameters().empty()) return;
  TensorMap<bool> ignored;
  for (const Tensor& tensor : tensors_named(parts.model, parts.ddp->ignored_parameters()))
    ignored.emplace(tensor, true);
  std::unordered_set<std::string> names;  // also the other names of such a tensor
  for (const NamedTensor& entry : parts.model.state_dict())
    if (ignored.find(entry.tensor) != nullptr) {
      names.insert(entry.name);
      add(Part::kModel, entry);
    }
  const auto add_states = [&](Part part, const std::vector<NamedTensor>& states) {
    for (const NamedTensor& state : states)
      if (names.count(parameter_of(state.name)) != 0) add(part, state);
  };
  if (parts.optimizer) {
    for (const NamedTensor& parameter : parts.optimizer->parameters())
      if (ignored.find(parameter.tensor) != nullptr) names.insert(parameter.name);
    if (parts.optimizer->slice_ranks() == 1) add_states(Part::kOptimizer, parts.optimizer->state());
  }
  if (parts.ema) add_states(Part::kAverages, parts.ema->state());
}

void OwnTensors::add(Part part, const NamedTensor& entry) {
  all_.push_back({name_in(part, entry.name), entry.tensor});
  names_.insert(all_.back().name);
}

bool OwnTensors::has(Part part, const std::string& name) const {
  return any() && names_.count(name_in(part, name)) != 0;
}

std::vector<NamedTensor> OwnTensors::shared(Part part, const std::vector<NamedTensor>& tensors) const {
  std::vector<NamedTensor> others;
  for (const NamedTensor& entry : tensors)
    if (!has(part, entry.name)) others.push_back(entry);
  return others;
}

std::vector<std::byte> own_file(const OwnTensors& own, int rank) {
  if (rank == 0 || !own.any()) return {};
  return safetensors_bytes(optim::with_weights(own.all()), metadata());
}

// In parts of equal size, that of the largest file: as a rule they are of one size.
std::vector<std::vector<std::byte>> gather_own(const CallGroup& group, const SaveFacts& facts,
                                               const std::vector<std::byte>& mine) {
  const std::size_t most = *std::max_element(facts.own_bytes.begin(), facts.own_bytes.end());
  std::vector<std::vector<std::byte>> files;
  if (most == 0) return files;
  std::vector<std::byte> send = mine, all(group.rank() == 0 ? most * facts.own_bytes.size() : 0);
  send.resize(most);
  group.get()->gather(send.data(), all.data(), most, DType::kUInt8, 0, {.purpose = {kPurposeOfOwn}});
  if (group.rank() != 0) return files;
  for (std::size_t rank = 0; rank < facts.own_bytes.size(); ++rank) {
    const std::byte* const begin = all.data() + rank * most;
    files.emplace_back(begin, begin + facts.own_bytes[rank]);
  }
  return files;
}

std::vector<std::size_t> plan_own(const LoadedCheckpoint& loaded, const OwnTensors& own, int ranks, bool has_ddp) {
  const int saved_ranks = loaded.state.at("world_size");
  std::vector<std::string> names;
  for (const auto& [name, file] : loaded.files)
    if (is_rank_name(name) && names.empty()) names = names_in(file, loaded.folder + "/" + name);
  if (names.empty()) {
    if (own.any() && ranks > 1)
      log::warn(
          "checkpoint: {} has no rank's own but rank 0's of what this job's ranks have of their own, {} and what "
          "belongs to it: all ranks "
          "get it",
          loaded.folder, quoted({own.all().front().name.substr(own.all().front().name.find('/') + 1)}));
    return {};
  }
  if (own.any() && ranks != saved_ranks)
    throw FileError(
        "{}: has {} of each of {} ranks (ignored_parameters of its DistributedDataParallel), and this job has {}: load "
        "it on {} ranks, or "
        "leave .ddp out of the parts to give all ranks what was rank 0's",
        loaded.folder, quoted(names), saved_ranks, ranks, saved_ranks);
  if (!own.any() && ranks == saved_ranks)
    throw FileError("{}: has {} of each of {} ranks (ignored_parameters of its DistributedDataParallel): {}",
                    loaded.folder, quoted(names), saved_ranks,
                    has_ddp ? "this job's .ddp does not ignore them: wrap the model with the options of that run"
                            : "give .ddp, the wrapper that ignores them");
  if (!own.any()) {
    log::warn("checkpoint: {} has {} of each of {} ranks: all ranks of this job get rank 0's", loaded.folder,
              quoted(names), saved_ranks);
    return {};
  }
  std::vector<std::size_t> bytes(static_cast<std::size_t>(ranks), 0);
  for (int rank = 1; rank < ranks; ++rank) {
    const auto file = loaded.files.find(rank_name(rank, ranks));
    if (file == loaded.files.end())
      throw FileError("{}/{}: does not list {}", loaded.folder, kManifest, rank_name(rank, ranks));
    bytes[static_cast<std::size_t>(rank)] = file->second.data.size();
  }
  return bytes;
}

std::vector<std::byte> scatter_own(const CallGroup& group, const LoadedCheckpoint* loaded,
                                   const std::vector<std::size_t>& bytes) {
  if (bytes.empty()) return {};
  const std::size_t most = *std::max_element(bytes.begin(), bytes.end());
  std::vector<std::byte> mine(most), all;
  if (loaded != nullptr) {
    all.resize(most * bytes.size());
    for (int rank = 1; rank < group.world_size(); ++rank) {
      const std::vector<std::byte>& file = loaded->files.at(rank_name(rank, group.world_size())).data;
      std::memcpy(all.data() + static_cast<std::size_t>(rank) * most, file.data(), file.size());
    }
  }
  group.get()->scatter(all.data(), mine.data(), most, DType::kUInt8, 0, {.purpose = {kPurposeOfOwn}});
  mine.resize(bytes[static_cast<std::size_t>(group.rank())]);
  return mine;
}

}  // namespace lockstep::checkpoint
