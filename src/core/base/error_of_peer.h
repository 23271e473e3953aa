// Errors of another rank that all ranks throw.
#pragma once

#include "lockstep/core/error.h"

namespace lockstep {

// A file that another rank could not use: to callers a FileError as there, to run_main() a consequence
// (kPeerLostExitCode), so that lockrun names the rank whose file it is.
class FileErrorOfPeer : public FileError {
 public:
  using FileError::FileError;
};

}  // namespace lockstep
