// The slices of ranks that have mapped each other's buckets: where a rank reads the gradients of its slices, and where
// it writes their new weights.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/core/update_params.h"
#include "lockstep/reduce/reducer.h"
#include "src/ddp/optimizers/shared_squares.h"
#include "src/optim/step_parts.h"

namespace lockstep {

class SharedSlices {
 public:
  struct Layout {
    const Reducer& reducer;
    std::span<const Buffer> weights;                  // by bucket, with the layout of the gradients
    std::span<const std::size_t> indices;             // by gradient: its index in the optimizer
    std::span<const optim::StepParts::Slice> slices;  // by the optimizer's index
  };
  struct Options {
    bool averages_are_whole = false;  // each rank has the averages, so it reads only its own
    bool sums_squares = false;
    const float* clip_factor = nullptr;  // the gradients are multiplied by it
  };
  // Without updates() unless all ranks have mapped each other's buckets, which is the same on all ranks. Collective if
  // it sums squares.
  SharedSlices(ProcessGroup& group, const Layout& layout, const Options& options);

  std::span<const SharedUpdate> updates() const { return updates_; }  // by the optimizer's index
  SharedSquares& squares() { return *squares_; }                      // with `sums_squares`

 private:
  using Addresses = std::vector<std::vector<std::byte*>>;  // by bucket and rank
  bool find(const Layout& layout, Addresses& gradients, Addresses& weights) const;
  void share_slices(const Layout& layout, const Addresses& gradients, const Addresses& weights,
                    const float* clip_factor);
  void share_squares(const Layout& layout, const Addresses& gradients);

  ProcessGroup& group_;
  std::vector<const float*> grads_;    // by parameter and rank
  std::vector<float*> copies_;         // by parameter and other rank
  std::vector<SharedUpdate> updates_;  // views of both
  std::optional<SharedSquares> squares_;
};

}  // namespace lockstep
