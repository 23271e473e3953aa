#include "lockstep/nn/added_losses.h"

#include "lockstep/autograd/activation_checkpoint.h"
#include "lockstep/autograd/elementwise.h"
#include "lockstep/autograd/shapes.h"
#include "lockstep/autograd/variable.h"
#include "lockstep/core/error.h"

namespace lockstep::nn {

namespace {

thread_local AddedLosses* collector = nullptr;

}  // namespace

AddedLosses::AddedLosses() : outer_(collector) { collector = this; }
AddedLosses::~AddedLosses() { collector = outer_; }

Tensor AddedLosses::sum() const {
  Tensor sum;
  for (const auto& [name, loss] : losses_) sum = sum.defined() ? sum + loss : loss;
  return sum;
}

Tensor AddedLosses::total(const Tensor& loss) const { return empty() ? loss : loss + sum(); }

void add_loss(const Tensor& loss, const std::string& name) {
  if (!loss.defined() || loss.count() != 1 || loss.dtype() != DType::kFloat32)
    throw InvalidArgument("add_loss: '{}' is {}; expected a float32 scalar", name,
                          loss.defined() ? fmt::format("{} of shape {}", name_of(loss.dtype()), loss.shape().text())
                                         : "an undefined tensor");
  if (collector == nullptr && NoGrad::active()) return;
  if (in_checkpoint())
    throw InvalidArgument(
        "add_loss: '{}' was added in a function of checkpoint() or parallel_apply(), which keeps no history of it: return it as a part of "
        "the result, or add it outside of the function",
        name);
  if (collector == nullptr)
    throw InvalidArgument(
        "add_loss: '{}' was added to a forward whose losses nobody collects, so that it would not be trained: make an "
        "nn::AddedLosses before the forward and differentiate its total(loss), or run the forward under NoGrad",
        name);
  collector->losses_.push_back({name, loss.shape().dims() == 0 ? loss : reshape(loss, {})});
}

}  // namespace lockstep::nn
