// Gradients that no_sync() has left on one rank. No optimizer may use them in a step before a pass has averaged them.
#pragma once

#include <vector>

#include "lockstep/tensor/named_tensor.h"

namespace lockstep {

class LocalGradients {
 public:
  explicit LocalGradients(const std::vector<NamedTensor>& parameters) : parameters_(parameters) {}  // must outlive it

  void keep(std::size_t parameter);  // until release(), zero_grad() or mark_grad_written()
  void release();                    // marks all as averaged

 private:
  const std::vector<NamedTensor>& parameters_;
  bool is_any_ = false;
};

}  // namespace lockstep
