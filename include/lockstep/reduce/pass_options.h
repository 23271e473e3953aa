// Options of passes that wrappers of all frameworks have in common.
#pragma once

#include <cstdint>
#include <functional>

#pragma GCC visibility push(default)
namespace lockstep {

// How to handle a step with an averaged gradient that is infinite or NaN. With all values except kIgnore, the ranks
// detect it before backward() returns, report its parameters, the ranks whose own gradients were bad and the step, and
// leave all parameters without a gradient.
enum class OnNonfiniteGradient : std::uint8_t {
  kIgnore,    // use the gradients as they are
  kSkipStep,  // skip the step on all ranks, with a warning of rank 0: the optimizer finds no gradients and changes
              // nothing
  kThrow,     // throw Error with the same text on all ranks; the group stays usable
};

struct JoinOptions {
  // true: divide the sum of a step's gradients by the number of all ranks; false: by the number of ranks that still
  // have data. If ranks set weights, the mean is over the samples of the ranks that have data in both cases.
  bool divide_by_initial_world_size = true;
  // Throw Error on all ranks as soon as one has no data left and another one has, instead of continuing.
  bool throw_on_early_termination = false;
  // Called on a rank without data after each step of the others, with that step's gradients: optimizer.step(),
  // schedules. Keeps the ranks' weights and momenta equal. Not called after a backward that threw on all ranks
  // (OnNonfiniteGradient::kThrow, an invalid weight), however the others continued. Empty: at the end, weights and
  // buffers of a rank that had data until then are sent to all, and optimizer states stay as they are.
  std::function<void()> after_step = {};
};

}  // namespace lockstep
#pragma GCC visibility pop
