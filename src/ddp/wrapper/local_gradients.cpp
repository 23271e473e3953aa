#include "src/ddp/wrapper/local_gradients.h"

#include <utility>

#include "lockstep/autograd/variable.h"

namespace lockstep {

namespace {

constexpr const char* kOneRanksOwn =
    "is of this rank's samples alone: backward ran under no_sync(), and no backward has averaged it since. Run the "
    "last backward of each "
    "window, of the epoch's last one too, outside of no_sync(), or drop the gradient by zero_grad(). A program that "
    "averages it by other "
    "means says mark_grad_written(parameter) then; one that averages weights makes a PeriodicModelAverager";

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
