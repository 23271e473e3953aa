#include "src/ddp/wrapper/local_gradients.h"

#include <utility>

#include "lockstep/autograd/variable.h"

namespace lockstep {

namespace {

constexpr const char* kOneRanksOwn =
    "has only this rank's samples: backward ran under no_sync(), and no backward has averaged it since. Run the last "
    "backward of each window, including the epoch's last one, outside no_sync(), or drop the gradient with "
    "zero_grad(). "
    "If the program averages it in another way, call mark_grad_written(parameter) afterwards; if it averages weights, "
    "make a PeriodicModelAverager";

}  // namespace

void LocalGradients::keep(std::size_t parameter) {
  refuse_step(parameters_[parameter].tensor, kOneRanksOwn);
  is_any_ = true;
}

void LocalGradients::release() {
  if (!std::exchange(is_any_, false)) return;
  for (const NamedTensor& parameter : parameters_)
    if (requires_grad(parameter.tensor)) refuse_step(parameter.tensor, nullptr);
}

}  // namespace lockstep
