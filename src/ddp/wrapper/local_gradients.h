// Gradients that no_sync() has left to one rank: no optimizer may step by them before a pass has averaged them.
#pragma once

#include <vector>

#include "lockstep/tensor/named_tensor.h"

namespace lockstep {

class LocalGradients {
 public:
  explicit LocalGradients(const std::vector<NamedTensor>& parameters)
      : parameters_(parameters) {}  // which must outlive it

  void keep(std::size_t parameter);  // until release(), zero_grad() or mark_grad_written()
  void release();                    // all of them: they are averages

 private:
  const std::vector<NamedTensor>& parameters_;
  bool is_any_ = false;
};

}  // namespace lockstep
