// The error that says that there is no GPU.
#pragma once

#include "lockstep/core/error.h"

namespace lockstep::cuda {

// There is no GPU to use, and nothing is broken: no driver, no device, no CUDA part. A program that did not ask for one computes on the
// CPU. All else that keeps a GPU from being used (a driver too old, a library missing) is a plain Error, for every program.
class NoGpu : public Error {
 public:
  using Error::Error;
};

}  // namespace lockstep::cuda
