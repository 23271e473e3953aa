#include "lockstep/optim/optimizer.h"

#include "lockstep/autograd/variable.h"
#include "lockstep/core/error.h"

namespace lockstep::optim {

Optimizer::Optimizer(std::vector<NamedTensor> parameters) : parameters_(std::move(parameters)) {
  if (parameters_.empty()) throw InvalidArgument("Optimizer: there is no parameter to optimize");
  for (const NamedTensor& parameter : parameters_)
    if (!parameter.tensor.defined() || !requires_grad(parameter.tensor))
      throw InvalidArgument("Optimizer: parameter '{}' requires no gradient", parameter.name);
}

void Optimizer::zero_grad() {
  for (const NamedTensor& parameter : parameters_) clear_grad(parameter.tensor);
}

}  // namespace lockstep::optim
