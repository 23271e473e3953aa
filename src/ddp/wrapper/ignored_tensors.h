#pragma once

#include <vector>

#include "lockstep/tensor/tensor.h"

namespace lockstep {

// The registry of the parameters and buffers that live wrappers ignore, for code that only has the module and would
// otherwise send rank 0's to all ranks. Any thread may call it.
class IgnoredTensors {
 public:
  explicit IgnoredTensors(std::vector<Tensor> tensors);
  ~IgnoredTensors();
  IgnoredTensors(const IgnoredTensors&) = delete;
  IgnoredTensors& operator=(const IgnoredTensors&) = delete;

  static bool has(const Tensor& tensor);

 private:
  const std::vector<Tensor> tensors_;
};

}  // namespace lockstep
