#include "src/nn/module/trainable.h"

#include <algorithm>

#include "lockstep/autograd/variable.h"

namespace lockstep::nn {

std::vector<NamedTensor> trainable_parameters(const Module& module) {
  std::vector<NamedTensor> wanted;
  for (NamedTensor& parameter : module.named_parameters()) {
    const auto is_this = [&](const NamedTensor& other) { return other.tensor.is_same(parameter.tensor); };
    if (requires_grad(parameter.tensor) && std::none_of(wanted.begin(), wanted.end(), is_this))
      wanted.push_back(std::move(parameter));
  }
  return wanted;
}

}  // namespace lockstep::nn
