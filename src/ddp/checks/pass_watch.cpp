#include "src/ddp/checks/pass_watch.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "lockstep/autograd/variable.h"

namespace lockstep {

namespace {

class Hash {
 public:
  void add(std::uint32_t word) { hash_ = (hash_ ^ word) * 0x100000001b3; }  // FNV-1a over words
  std::uint32_t value() const { return static_cast<std::uint32_t>(hash_ ^ hash_ >> 32); }

 private:
  std::uint64_t hash_ = 0xcbf29ce484222325;
};

// Returns the bits of one element, folded to 32. All NaNs give the same value, because their bits may depend on the
// CPU.
std::uint32_t bits_of(const Tensor& tensor, std::size_t element) {
  const std::size_t bytes = size_of(tensor.dtype());
  const std::byte* const at = tensor.buffer().data() + element * bytes;
  std::uint64_t bits = 0;
  std::memcpy(&bits, at, bytes);
  const bool is_nan =
      (tensor.dtype() == DType::kFloat32 && std::isnan(std::bit_cast<float>(static_cast<std::uint32_t>(bits)))) ||
      (tensor.dtype() == DType::kFloat64 && std::isnan(std::bit_cast<double>(bits)));
  return is_nan ? 0x7fc00000 : static_cast<std::uint32_t>(bits ^ bits >> 32);
}

}  // namespace

PassWatch::PassWatch(ProcessGroup& group, const std::vector<NamedTensor>& trained,
                     const std::vector<NamedTensor>& replicated)
    : group_(group), trained_(trained), replicated_(replicated), wrapper_(group.count_wrapper()) {
  for (const NamedTensor& parameter : trained) keys_.insert(parameter.tensor.autograd_meta());
  find_optimizers(/*are_new=*/false);
}

// An optimizer that existed before the wrapper may have made different numbers of steps on the ranks, because one may
// have joined the job later.
void PassWatch::find_optimizers(bool are_new) {
  const std::uint64_t generation = optim::LiveOptimizers::generation();
  if (generation == generation_) return;
  generation_ = generation;
  groups_ = optim::LiveOptimizers::of(keys_);
  std::vector<Watched> watched;
  for (const auto& [optimizer, group] : groups_) {
    if (!watched.empty() && watched.back().optimizer == optimizer) continue;
    const std::uint32_t begun = optim::LiveOptimizers::begun(*optimizer),
                        steps = optim::LiveOptimizers::steps(*optimizer);
    const auto is_known =
        [&, here = optimizer](const Watched& each) {  // and not another one at the address of one that was destroyed
          return each.optimizer == here && each.begun <= begun && each.steps <= steps;
        };
    const auto known = std::find_if(optimizers_.begin(), optimizers_.end(), is_known);
    if (known != optimizers_.end())
      watched.push_back(*known);
    else
      watched.push_back({optimizer, are_new ? 0 : begun, are_new ? 0 : steps});
  }
  optimizers_ = std::move(watched);
}

void PassWatch::add_optimizers(PassState& state) {
  if (std::exchange(restarts_, false)) {
    optimizers_.clear();
    generation_ = 0;
    find_optimizers(/*are_new=*/false);
  }
  find_optimizers(/*are_new=*/true);
  for (const Watched& each : optimizers_) {
    state.begun += optim::LiveOptimizers::begun(*each.optimizer) - each.begun;
    state.updates += optim::LiveOptimizers::steps(*each.optimizer) - each.steps;
  }
  Hash rates;
  for (const auto& [optimizer, group] : groups_) rates.add(std::bit_cast<std::uint32_t>(optimizer->group_lr(group)));
  if (!groups_.empty()) state.lr = groups_.front().optimizer->group_lr(groups_.front().group);
  state.rates = rates.value();
}

void PassWatch::add_trained(PassState& state) const {
  Hash set;
  for (std::uint32_t i = 0; i < trained_.size(); ++i) {
    if (!requires_grad(trained_[i].tensor)) continue;
    ++state.trained;
    set.add(i);
  }
  state.trained_hash = set.value();
}

// Ranks may accumulate unequal numbers of batches under no_sync(). These do not count, except a batch that a reduced
// pass also uses.
std::uint32_t PassWatch::batch() {
  const BatchPosition& here = this_threads_batch;
  if (here.pass == 0 || here.ranks != group_.world_size()) return 0;
  if (last_local_ == here) {
    --local_batches_;
    last_local_ = {here.pass, 0, 0};
  }
  return here.batch - (last_local_.pass == here.pass ? local_batches_ : 0);
}

void PassWatch::note_local_pass() {
  const BatchPosition& here = this_threads_batch;
  if (here.pass == 0 || last_local_ == here) return;
  local_batches_ = (last_local_.pass == here.pass ? local_batches_ : 0) + 1;
  last_local_ = here;
}

std::uint32_t PassWatch::weights(std::uint64_t step) const {
  Hash hash;
  const std::size_t looks = std::min(kLooks, replicated_.size());
  for (std::size_t k = 0; k < looks; ++k) {
    const std::uint64_t look = step * looks + k;
    const Tensor& tensor = replicated_[look % replicated_.size()].tensor;
    if (tensor.count() == 0 || tensor.device().kind() != DeviceKind::kCpu) continue;
    const std::uint64_t spread =
        look * 0x9e3779b97f4a7c15;  // 2^64 / golden ratio: selects a different element each time
    hash.add(bits_of(tensor, static_cast<std::size_t>((spread >> 20) % static_cast<std::uint64_t>(tensor.count()))));
  }
  return hash.value();
}

void PassWatch::begin_pass(std::uint64_t step) {
  if (group_.world_size() == 1) return;
  last_step_ = step;
  PassState state{.wrapper = wrapper_, .pass = static_cast<std::uint32_t>(step) + replays_, .batch = batch()};
  add_optimizers(state);
  add_trained(state);
  if (!weights_may_differ_) state.weights = weights(step);
  group_.compare_with_next_call(state);
}

void PassWatch::begin_replay() {
  ++replays_;
  begin_pass(last_step_);
}

void PassWatch::begin_pass_in_join(std::uint64_t step) {
  if (group_.world_size() == 1) return;
  PassState state{.wrapper = wrapper_, .pass = static_cast<std::uint32_t>(step)};
  add_trained(state);
  group_.compare_with_next_call(state);
}

}  // namespace lockstep
