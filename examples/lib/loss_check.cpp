#include "examples/lib/training.h"
#include "lockstep/autograd/engine.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/variable.h"
#include "lockstep/train/check_finite.h"

namespace lockstep::examples {

void LossCheck::step(std::int64_t step, const Tensor& loss, bool is_last) {
  if (!sum_.defined()) first_ = step;
  sum_ = sum_.defined() ? sum_ + detach(loss) : detach(loss);
  if (step % every_ != 0 && !is_last) return;
  train::check_finite(sum_, step, {.name = fmt::format("sum of the losses since step {}", first_), .group = group_});
  sum_ = {};
}

}  // namespace lockstep::examples
