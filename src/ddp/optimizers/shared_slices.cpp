#include "src/ddp/optimizers/shared_slices.h"

#include <cstdint>
#include <utility>

namespace lockstep {

SharedSlices::SharedSlices(ProcessGroup& group, const Layout& layout, const Options& options) : group_(group) {
  Addresses gradients, weights;
  if (!find(layout, gradients, weights)) return;
  if (options.averages_are_whole)
    for (std::vector<std::byte*>& of_ranks : gradients) of_ranks = {of_ranks[static_cast<std::size_t>(group.rank())]};
  share_slices(layout, gradients, weights, options.clip_factor);
  if (options.sums_squares) share_squares(layout, gradients);
}

bool SharedSlices::find(const Layout& layout, Addresses& gradients, Addresses& weights) const {
  for (std::size_t b = 0; b < layout.weights.size(); ++b) {
    const DeviceKind device = layout.reducer.buckets()[b].device;
    const std::size_t bytes = layout.weights[b].bytes();
    gradients.push_back(group_.peer_addresses(layout.reducer.memory(b).data(), bytes, device));
    weights.push_back(group_.peer_addresses(layout.weights[b].data(), bytes, device));
    if (gradients.back().empty() || weights.back().empty()) return false;
  }
  return true;
}

void SharedSlices::share_slices(const Layout& layout, const Addresses& gradients, const Addresses& weights,
                                const float* clip_factor) {
  const std::size_t others = weights.front().size() - 1, grads = gradients.front().size();
  const std::size_t parameters = layout.slices.size();
  grads_.resize(parameters * grads);
  copies_.resize(parameters * others);
  updates_.resize(parameters);
  for (std::size_t b = 0; b < weights.size(); ++b)
    for (const Slot& slot : layout.reducer.buckets()[b].slots) {
      const std::size_t i = layout.indices[slot.gradient], first = slot.offset + layout.slices[i].begin * sizeof(float);
      const float** grad = &grads_[i * grads];
      float** copy = &copies_[i * others];
      updates_[i] = {{grad, grads}, {copy, others}, clip_factor};
      for (std::byte* const of_rank : gradients[b]) *grad++ = reinterpret_cast<const float*>(of_rank + first);
      for (std::size_t rank = 0; rank <= others; ++rank)
        if (rank != static_cast<std::size_t>(group_.rank()))
          *copy++ = reinterpret_cast<float*>(weights[b][rank] + first);
    }
}

void SharedSlices::share_squares(const Layout& layout, const Addresses& gradients) {
  std::vector<std::int64_t> counts;
  std::vector<const float*> grads;
  for (std::size_t b = 0; b < gradients.size(); ++b)
    for (const Slot& slot : layout.reducer.buckets()[b].slots) {
      counts.push_back(static_cast<std::int64_t>(layout.reducer.gradients()[slot.gradient].count));
      for (std::byte* const of_rank : gradients[b])
        grads.push_back(reinterpret_cast<const float*>(of_rank + slot.offset));
    }
  squares_.emplace(group_, counts, std::move(grads));
}

}  // namespace lockstep
