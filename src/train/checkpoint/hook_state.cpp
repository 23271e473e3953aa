#include "src/train/checkpoint/hook_state.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "lockstep/core/error.h"

namespace lockstep::checkpoint {

namespace {

constexpr const char* kPurpose = "comm hook state";

std::int64_t extent(std::size_t count) { return static_cast<std::int64_t>(count); }

// Null: there is none of that name.
class SavedByName {
 public:
  explicit SavedByName(const std::vector<SavedTensor>* saved) {
    if (saved == nullptr) return;
    for (const SavedTensor& each : *saved) by_name_.emplace(each.name, &each);
  }
  const SavedTensor* find(const std::string& name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : found->second;
  }

 private:
  std::unordered_map<std::string_view, const SavedTensor*> by_name_;
};

std::size_t saved_ranks(const SavedTensor& saved) { return static_cast<std::size_t>(saved.shape[0]); }

// The mean over the ranks that saved it, of float32.
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

// What lies on a GPU, on the host: a copy, and the way back.
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

// Rank 0 has `saved`, the others null.
void restore_to(void* data, const HookState& state, const SavedTensor* saved, ProcessGroup* group) {
  const std::size_t bytes = bytes_of(state),
                    ranks = group == nullptr ? 1 : static_cast<std::size_t>(group->world_size());
  const bool is_first = group == nullptr || group->rank() == 0;
  std::int64_t rows = is_first && state.is_each_ranks_own ? saved->shape[0] : 0;
  if (group != nullptr && state.is_each_ranks_own)
    group->broadcast(&rows, 1, DType::kInt64, 0, {.purpose = {kPurpose}});
  if (group != nullptr && rows == extent(ranks)) {
    group->scatter(is_first ? saved->data.data() : nullptr, data, state.count, state.dtype, 0, {.purpose = {kPurpose}});
    return;
  }
  if (is_first && state.is_each_ranks_own)
    mean_of_ranks(*saved, state.count, static_cast<float*>(data));
  else if (is_first && bytes != 0)
    std::memcpy(data, saved->data.data(), bytes);
  if (group != nullptr) group->broadcast(data, state.count, state.dtype, 0, {.purpose = {kPurpose}});
}

void restore(const HookState& state, const SavedTensor* saved, ProcessGroup* group) {
  OnHost host(state);
  restore_to(host.data(), state, saved, group);
  host.write();
}

}  // namespace

std::vector<HookState> states_of(const CommHook& hook) { return hook ? hook->state() : std::vector<HookState>(); }

std::vector<NamedTensor> gather_hook_state(const CommHook& hook, ProcessGroup* group) {
  std::vector<NamedTensor> all;
  const bool is_first = group == nullptr || group->rank() == 0;
  const std::int64_t ranks = group == nullptr ? 1 : group->world_size();
  for (const HookState& state : states_of(hook)) {
    const Shape shape = state.is_each_ranks_own ? Shape{ranks, extent(state.count)} : Shape{extent(state.count)};
    Tensor gathered = is_first ? Tensor::empty(shape, state.dtype) : Tensor();
    void* const to = is_first ? gathered.buffer().data() : nullptr;
    OnHost host(state);
    if (is_first || state.is_each_ranks_own) host.read();
    if (state.is_each_ranks_own && group != nullptr)
      group->gather(host.data(), to, state.count, state.dtype, 0, {.purpose = {kPurpose}});
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
  const SavedByName by_name(&saved);
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

void restore_hook_state(const CommHook& hook, const std::vector<SavedTensor>* saved, ProcessGroup* group) {
  const SavedByName by_name(saved);
  for (const HookState& state : states_of(hook)) restore(state, by_name.find(state.name), group);
}

}  // namespace lockstep::checkpoint
