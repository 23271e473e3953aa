#pragma once

#include <vector>

#include "lockstep/tensor/tensor.h"

namespace lockstep {

// The parameters and buffers that a wrapper ignores, while it lives: for those that see the module alone and would send
// rank 0's to all. Any thread may call it.
class EachRanksOwn {
 public:
  explicit EachRanksOwn(std::vector<Tensor> tensors);
  ~EachRanksOwn();
  EachRanksOwn(const EachRanksOwn&) = delete;
  EachRanksOwn& operator=(const EachRanksOwn&) = delete;

  static bool has(const Tensor& tensor);

 private:
  const std::vector<Tensor> tensors_;
};

}  // namespace lockstep
