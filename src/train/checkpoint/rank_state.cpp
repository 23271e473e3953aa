#include "src/train/checkpoint/rank_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "src/core/base/message_text.h"
#include "src/ddp/wrapper/agreed_options.h"
#include "src/optim/swapped_weights.h"
#include "src/tensor/tensor_map.h"

namespace lockstep::train::checkpoint {

namespace {

// -- random states

constexpr const char* kOfRanks = "random_of_ranks";

RandomState state_in(const nlohmann::json& random) {
  return {random.at("seed"), random.at("next_stream"), random.value("next_dropout", std::uint64_t{0})};
}

nlohmann::ordered_json json_of(const RandomState& random) {
  return {{"seed", random.seed}, {"next_stream", random.next_stream}, {"next_dropout", random.next_dropout}};
}

// Philox with the seed as its key and the rank in its counter: differs for each rank, and from the seed itself.
std::uint64_t seed_of_rank(std::uint64_t seed, int rank) {
  constexpr std::uint32_t kCounter = 0x72616e6b;  // "rank"
  const auto block = philox4x32({static_cast<std::uint32_t>(rank), 0, 0, kCounter},
                                {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  return (std::uint64_t{block[1]} << 32) | block[0];
}

// -- own tensors

constexpr const char* kPurposeOfOwn = "checkpoint of what is each rank's own";

std::string name_in(Part part, const std::string& name) {
  return (part == Part::kModel ? "model/" : part == Part::kOptimizer ? "optimizer/" : "averages/") + name;
}

// "conv1.weight" of "conv1.weight.momentum".
std::string parameter_of(const std::string& state) { return state.substr(0, state.rfind('.')); }

// The names of the own tensors in a rank's file, without the part.
std::vector<std::string> names_in(const ReadFile& file, const std::string& path) {
  std::vector<std::string> names;
  for (const SavedTensor& tensor : parse_file(file.data, path).tensors)
    names.push_back(tensor.name.substr(tensor.name.find('/') + 1));
  return names;
}

// -- comm hooks

constexpr const char* kPurposeOfHook = "comm hook state";

std::int64_t extent(std::size_t count) { return static_cast<std::int64_t>(count); }

std::size_t saved_ranks(const SavedTensor& saved) { return static_cast<std::size_t>(saved.shape[0]); }

// The mean over the ranks that saved it; float32.
void mean_of_ranks(const SavedTensor& saved, std::size_t count, float* mean) {
  std::fill(mean, mean + count, 0.0f);
  const float share = 1 / static_cast<float>(saved_ranks(saved));
  for (std::size_t rank = 0; rank < saved_ranks(saved); ++rank)
    for (std::size_t i = 0; i < count; ++i) {
      float value = 0;
      std::memcpy(&value, saved.data.data() + (rank * count + i) * sizeof(float), sizeof(float));
      mean[i] += share * value;
    }
}

std::size_t bytes_of(const HookState& state) { return state.count * size_of(state.dtype); }

// A hook's state on the host: a copy if it lies on a GPU.
class OnHost {
 public:
  explicit OnHost(const HookState& state) : state_(state), copy_(state.device == nullptr ? 0 : bytes_of(state)) {}
  void* data() { return state_.device == nullptr ? state_.data : copy_.data(); }
  void read() {
    if (state_.device == nullptr) return;
    Stream& stream = state_.device->default_stream();
    state_.device->copy(copy_.data(), state_.data, copy_.size(), stream);
    stream.synchronize();
  }
  void write() {
    if (state_.device != nullptr)
      state_.device->upload(state_.data, copy_.data(), copy_.size(), state_.device->default_stream());
  }

 private:
  const HookState& state_;
  std::vector<std::byte> copy_;
};

// `saved` is null except on rank 0.
void restore_to(void* data, const HookState& state, const SavedTensor* saved, GroupRef group) {
  ProcessGroup* const others = group.get();
  const bool is_first = group.rank() == 0;
  std::int64_t rows = is_first && state.is_each_ranks_own ? saved->shape[0] : 0;
  if (others != nullptr && state.is_each_ranks_own)
    others->broadcast(&rows, 1, DType::kInt64, 0, {.purpose = {kPurposeOfHook}});
  if (others != nullptr && rows == group.world_size()) {
    others->scatter(is_first ? saved->data.data() : nullptr, data, state.count, state.dtype, 0,
                    {.purpose = {kPurposeOfHook}});
    return;
  }
  if (is_first && state.is_each_ranks_own)
    mean_of_ranks(*saved, state.count, static_cast<float*>(data));
  else if (is_first && state.count != 0)
    std::memcpy(data, saved->data.data(), bytes_of(state));
  if (others != nullptr) others->broadcast(data, state.count, state.dtype, 0, {.purpose = {kPurposeOfHook}});
}

void restore(const HookState& state, const SavedTensor* saved, GroupRef group) {
  OnHost host(state);
  restore_to(host.data(), state, saved, group);
  host.write();
}

}  // namespace

// -- random states

void add_random(nlohmann::ordered_json& state, const std::vector<RandomState>& of_ranks) {
  state["random"] = json_of(of_ranks.front());
  if (std::all_of(of_ranks.begin(), of_ranks.end(), [&](const RandomState& each) { return each == of_ranks.front(); }))
    return;
  auto list = nlohmann::ordered_json::array();
  for (const RandomState& each : of_ranks) list.push_back(json_of(each));
  state[kOfRanks] = std::move(list);
}

RandomState random_of(const nlohmann::json& state, int rank, int ranks) {
  const RandomState first = state_in(state.at("random"));
  if (!state.contains(kOfRanks)) return first;
  const nlohmann::json& list = state.at(kOfRanks);
  const auto number = static_cast<std::size_t>(rank);
  if (ranks == 1) return first;
  if (number < list.size()) return state_in(list.at(number));
  return {seed_of_rank(first.seed, rank), 0, 0};
}

std::string warning_of_random(const nlohmann::json& state, int ranks) {
  if (!state.contains(kOfRanks)) return "";
  const int saved = static_cast<int>(state.at(kOfRanks).size());
  if (ranks == saved) return "";
  const std::string begin =
      fmt::format("each of its {} ranks had a random state of its own, and this job has {}: ", saved, ranks);
  if (ranks < saved) return begin + fmt::format("those of ranks from {} on are not used", ranks);
  return begin +
         fmt::format("ranks from {} on begin fresh streams, of seeds made of rank 0's and their numbers", saved);
}

// -- own tensors

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
    if (parts.optimizer->slice_holders() == 1) add_states(Part::kOptimizer, parts.optimizer->state());
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

// In parts as large as the largest file, because the files usually have the same size.
std::vector<std::vector<std::byte>> gather_own(GroupRef group, const std::vector<std::size_t>& sizes,
                                               const std::vector<std::byte>& mine) {
  const std::size_t most = *std::max_element(sizes.begin(), sizes.end());
  std::vector<std::vector<std::byte>> files;
  if (most == 0) return files;
  std::vector<std::byte> send = mine, all(group.rank() == 0 ? most * sizes.size() : 0);
  send.resize(most);
  group.get()->gather(send.data(), all.data(), most, DType::kUInt8, 0, {.purpose = {kPurposeOfOwn}});
  if (group.rank() != 0) return files;
  for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
    const std::byte* const begin = all.data() + rank * most;
    files.emplace_back(begin, begin + sizes[rank]);
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

std::vector<std::byte> scatter_own(GroupRef group, const LoadedCheckpoint* loaded,
                                   const std::vector<std::size_t>& sizes) {
  if (sizes.empty()) return {};
  const std::size_t most = *std::max_element(sizes.begin(), sizes.end());
  std::vector<std::byte> mine(most), all;
  if (loaded != nullptr) {
    all.resize(most * sizes.size());
    for (int rank = 1; rank < group.world_size(); ++rank) {
      const std::vector<std::byte>& file = loaded->files.at(rank_name(rank, group.world_size())).data;
      std::memcpy(all.data() + static_cast<std::size_t>(rank) * most, file.data(), file.size());
    }
  }
  group.get()->scatter(all.data(), mine.data(), most, DType::kUInt8, 0, {.purpose = {kPurposeOfOwn}});
  mine.resize(sizes[static_cast<std::size_t>(group.rank())]);
  return mine;
}

// -- comm hooks

std::vector<HookState> states_of(const CommHook& hook) { return hook ? hook->state() : std::vector<HookState>(); }

std::vector<NamedTensor> gather_hook_state(const CommHook& hook, GroupRef group) {
  std::vector<NamedTensor> all;
  const bool is_first = group.rank() == 0;
  const std::int64_t ranks = group.world_size();
  for (const HookState& state : states_of(hook)) {
    const Shape shape = state.is_each_ranks_own ? Shape{ranks, extent(state.count)} : Shape{extent(state.count)};
    Tensor gathered = is_first ? Tensor::empty(shape, state.dtype, cpu_device()) : Tensor();
    void* const to = is_first ? gathered.buffer().data() : nullptr;
    OnHost host(state);
    if (is_first || state.is_each_ranks_own) host.read();
    if (state.is_each_ranks_own && group.get() != nullptr)
      group.get()->gather(host.data(), to, state.count, state.dtype, 0, {.purpose = {kPurposeOfHook}});
    else if (is_first && state.count != 0)
      std::memcpy(to, host.data(), bytes_of(state));
    if (is_first) all.push_back({state.name, std::move(gathered)});
  }
  return all;
}

void check_hook_state(const CommHook& hook, const std::vector<SavedTensor>& saved, const std::string& path) {
  const std::vector<HookState> wanted = states_of(hook);
  std::unordered_set<std::string_view> names;
  for (const HookState& state : wanted) names.insert(state.name);
  const SavedByName by_name(saved);
  for (const SavedTensor& each : saved)
    if (names.count(each.name) == 0)
      throw FileError(
          "{}: is of a comm hook that keeps '{}', which this run's ({}) does not: give the wrapper the hook of that "
          "run",
          path, each.name, hook ? hook->describe() : "none");
  for (const HookState& state : wanted) {
    const SavedTensor* const found = by_name.find(state.name);
    if (found == nullptr)
      throw FileError(
          "{}: has no '{}' of the comm hook {}: leave .ddp out of the parts to load weights without the hook's state",
          path, state.name, hook->describe());
    const bool is_own = state.is_each_ranks_own && found->shape.dims() == 2 && found->shape[0] > 0;
    const Shape expected = is_own ? Shape{found->shape[0], extent(state.count)} : Shape{extent(state.count)};
    if (found->dtype != state.dtype || found->shape != expected)
      throw FileError(
          "{}: '{}' is {} {} there; {} {} was expected", path, state.name, name_of(found->dtype), found->shape.text(),
          name_of(state.dtype),
          state.is_each_ranks_own ? Shape{1, extent(state.count)}.text() + " for each rank" : expected.text());
  }
}

void restore_hook_state(const CommHook& hook, const std::vector<SavedTensor>* saved, GroupRef group) {
  static const std::vector<SavedTensor> kNone;
  const SavedByName by_name(saved == nullptr ? kNone : *saved);
  for (const HookState& state : states_of(hook)) restore(state, by_name.find(state.name), group);
}

}  // namespace lockstep::train::checkpoint
