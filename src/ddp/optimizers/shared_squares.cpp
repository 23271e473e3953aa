#include "src/ddp/optimizers/shared_squares.h"

#include <algorithm>
#include <numeric>

#include "lockstep/core/error.h"
#include "lockstep/core/kernels.h"

namespace lockstep {

std::vector<int> ranks_that_sum(std::span<const std::int64_t> counts, int ranks) {
  std::vector<std::size_t> order(counts.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return counts[a] > counts[b]; });
  std::vector<std::int64_t> loads(static_cast<std::size_t>(ranks));
  std::vector<int> ranks_of(counts.size());
  for (const std::size_t k : order) {
    const auto least = std::min_element(loads.begin(), loads.end());
    *least += counts[k];
    ranks_of[k] = static_cast<int>(least - loads.begin());
  }
  return ranks_of;
}

SharedSquares::SharedSquares(ProcessGroup& group, std::span<const std::int64_t> counts, std::vector<const float*> grads)
    : group_(group), grads_(std::move(grads)), memory_(group.allocate(counts.size() * sizeof(double))) {
  const auto world = static_cast<std::size_t>(group.world_size());
  const std::vector<int> ranks_of = ranks_that_sum(counts, group.world_size());
  for (std::size_t k = 0; k < counts.size(); ++k)
    if (ranks_of[k] == group.rank()) {
      own_.push_back(k);
      updates_.push_back({.grads = {&grads_[k * world], world}, .copies = {}});
    }
  for (std::size_t i = 0; i < own_.size(); ++i) {
    tensors_.push_back({nullptr, nullptr, {}, counts[own_[i]]});
    tensors_.back().shared = &updates_[i];
  }
  own_sums_.resize(own_.size());
  for (std::byte* const copy : group.peer_addresses(memory_.data(), memory_.bytes()))
    copies_.push_back(reinterpret_cast<double*>(copy));
  LOCKSTEP_CHECK(copies_.size() == world, "{} of {} ranks have mapped the sums of squares", copies_.size(), world);
}

// The first barrier publishes the gradients that all ranks read, the second the sums that each has written to all.
void SharedSquares::sum(const Tensor& sums, std::int32_t pass) {
  group_.barrier({.purpose = {"gradients to square, of pass", pass}});
  Device& device = sums.device();
  device.kernels().square_sums(tensors_, own_sums_.data(), device.default_stream());
  for (double* const copy : copies_)
    for (std::size_t i = 0; i < own_.size(); ++i) copy[own_[i]] = own_sums_[i];
  group_.barrier({.purpose = {"squares of pass", pass}});
  std::copy(copies_[static_cast<std::size_t>(group_.rank())],
            copies_[static_cast<std::size_t>(group_.rank())] + sums.count(), sums.data<double>());
}

}  // namespace lockstep
