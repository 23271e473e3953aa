// A folder that this job may not or cannot save in, whatever the state of its disk: it belongs to another job, or is
// itself a checkpoint. OnSaveError::kContinue does not forgive it.
#pragma once

#include "src/core/base/error_of_peer.h"

namespace lockstep::train::checkpoint {

class FolderRefusal : public FileError {
 public:
  using FileError::FileError;
};

class FolderRefusalOfPeer : public FileErrorOfPeer {
 public:
  using FileErrorOfPeer::FileErrorOfPeer;
};

}  // namespace lockstep::train::checkpoint
