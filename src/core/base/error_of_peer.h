// Errors of another rank that all ranks throw. run_main() ends with kPeerLostExitCode for them, so that lockrun names
// the rank on which the error arose.
#pragma once

#include "lockstep/core/error.h"

namespace lockstep {

class ErrorOfPeer : public Error {
 public:
  using Error::Error;
};

class FileErrorOfPeer : public FileError {
 public:
  using FileError::FileError;
};

}  // namespace lockstep
