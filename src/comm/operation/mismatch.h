// The messages for ranks whose signatures differ.
#pragma once

#include <string>

#include "lockstep/comm/operation.h"

namespace lockstep {

// A rank's own description of its call.
struct CallOfRank {
  int rank = 0;
  Signature signature;
  Purpose purpose;
  PassState pass;
};

// "the ranks make different calls: rank 0: ...; rank 1: ...". If only their positions in the training differ, the text
// names the difference and what to do. The lower rank comes first.
std::string describe_mismatch(const CallOfRank& one, const CallOfRank& other);

}  // namespace lockstep
