// Checks that the ranks are in step: before a pass's first call each rank sets its position, which that call compares.
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_set>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/named_tensor.h"
#include "src/core/base/batch_position.h"
#include "src/optim/live_optimizers.h"

namespace lockstep {

// Numbers count from the wrapper's construction. Each pass reads some elements of up to kLooks weight tensors, in turn:
// diverged replicas differ in nearly all elements, and reading all would take as long as a step. Weights on a GPU are
// not read, because its host would have to wait.
class PassWatch {
 public:
  // `trained`: the parameters that are reduced; `replicated`: all that are equal on all ranks. Both must outlive it.
  // All ranks must construct it, but it does not communicate.
  PassWatch(ProcessGroup& group, const std::vector<NamedTensor>& trained, const std::vector<NamedTensor>& replicated);

  // A reduced pass begins: the group's next call compares this rank's position. Does not allocate once all optimizers
  // are known.
  void begin_pass(std::uint64_t step);
  // A recorded step is replayed: a pass and a step that host code has not counted.
  void begin_replay();
  // The same in join(), where ranks with and without data behave differently. Compares only the pass and the set of
  // trained parameters.
  void begin_pass_in_join(std::uint64_t step);
  // A pass without reduction, under no_sync().
  void note_local_pass();
  // Resets the counts on all ranks from the next pass on, after join(), in which they were unequal.
  void restart() noexcept { restarts_ = true; }
  // Weights may differ from now on, because something averages them only at intervals.
  void let_weights_differ() { weights_may_differ_ = true; }
  bool weights_may_differ() const { return weights_may_differ_; }

 private:
  static constexpr std::size_t kLooks = 32;
  struct Watched {  // an optimizer
    const optim::Optimizer* optimizer;
    std::uint32_t begun, steps;  // counts before the wrapper
  };
  void find_optimizers(bool are_new);
  void add_optimizers(PassState& state);
  void add_trained(PassState& state) const;
  std::uint32_t batch();
  std::uint32_t weights(std::uint64_t step) const;

  ProcessGroup& group_;
  const std::vector<NamedTensor>&trained_, &replicated_;
  std::unordered_set<const void*> keys_;  // of trained_
  std::uint32_t wrapper_, replays_ = 0;
  bool restarts_ = false;
  std::uint64_t last_step_ = 0;
  std::uint64_t generation_ = 0;
  std::vector<optim::LiveOptimizers::Found> groups_;
  std::vector<Watched> optimizers_;
  BatchPosition last_local_;         // where a pass under no_sync() was
  std::uint32_t local_batches_ = 0;  // batches of the loader's pass that such passes used up
  bool weights_may_differ_ = false;
};

}  // namespace lockstep
