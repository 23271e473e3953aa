#include "lockstep/optim/optimizer.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "lockstep/autograd/variable.h"
#include "lockstep/core/error.h"

namespace lockstep::optim {

namespace {

// A parameter under two names (tied weights) is updated once, under the first.
std::vector<NamedTensor> each_once(std::vector<NamedTensor> parameters) {
  std::vector<NamedTensor> once;
  for (NamedTensor& parameter : parameters) {
    const auto is_this = [&](const NamedTensor& other) { return other.tensor.is_same(parameter.tensor); };
    if (std::none_of(once.begin(), once.end(), is_this)) once.push_back(std::move(parameter));
  }
  return once;
}

// Two tensors over the same memory have two gradients: neither is the memory's. Sorted by address, what overlaps is adjacent.
void check_memory_is_apart(const std::vector<NamedTensor>& parameters) {
  const auto begin = [](const NamedTensor& parameter) { return parameter.tensor.buffer().data(); };
  std::vector<std::reference_wrapper<const NamedTensor>> by_address(parameters.begin(), parameters.end());
  std::erase_if(by_address, [](const NamedTensor& parameter) { return parameter.tensor.bytes() == 0; });
  std::sort(by_address.begin(), by_address.end(),
            [&](const NamedTensor& a, const NamedTensor& b) { return std::less<>()(begin(a), begin(b)); });
  for (std::size_t i = 1; i < by_address.size(); ++i) {
    const NamedTensor &a = by_address[i - 1], &b = by_address[i];
    if (std::less<>()(begin(b), begin(a) + a.tensor.bytes()))
      throw InvalidArgument(
          "Optimizer: parameters '{}' {} and '{}' {} share memory and would both update it: tie weights by registering one tensor under "
          "both names",
          a.name, a.tensor.shape().text(), b.name, b.tensor.shape().text());
  }
}

}  // namespace

Optimizer::Optimizer(std::vector<NamedTensor> parameters) {
  if (parameters.empty()) throw InvalidArgument("Optimizer: there is no parameter to optimize");
  for (const NamedTensor& parameter : parameters)
    if (!parameter.tensor.defined() || !requires_grad(parameter.tensor))
      throw InvalidArgument("Optimizer: parameter '{}' requires no gradient", parameter.name);
  parameters_ = each_once(std::move(parameters));
  check_memory_is_apart(parameters_);
}

void Optimizer::zero_grad() {
  for (const NamedTensor& parameter : parameters_) clear_grad(parameter.tensor);
}

}  // namespace lockstep::optim
