// The parameters of a DistributedDataParallel as the passes of src/reduce see them.
#pragma once

#include <string>
#include <vector>

#include "lockstep/autograd/variable.h"
#include "lockstep/tensor/named_tensor.h"
#include "src/reduce/passes/gradient_owner.h"

namespace lockstep {

inline bool wants_and_has_grad(const Tensor& parameter) {  // false for a frozen one
  return lockstep::requires_grad(parameter) && has_grad(parameter);
}

class TensorGradients : public GradientOwner {
 public:
  explicit TensorGradients(const std::vector<NamedTensor>& parameters) : parameters_(parameters) {}  // must outlive it
  std::size_t count() const override { return parameters_.size(); }
  const std::string& name(std::size_t parameter) const override { return parameters_[parameter].name; }
  bool requires_grad(std::size_t parameter) const override {
    return lockstep::requires_grad(parameters_[parameter].tensor);
  }
  void take_average(std::size_t parameter) override { mark_grad_written(parameters_[parameter].tensor); }

 private:
  const std::vector<NamedTensor>& parameters_;
};

}  // namespace lockstep
