// What to say when two ranks' signatures differ.
#pragma once

#include <string>

#include "lockstep/comm/operation.h"

namespace lockstep {

// A rank's call, as it describes it itself.
struct CallOfRank {
  int rank = 0;
  Signature signature;
  Purpose purpose;
  PassState pass;
};

// "the ranks make different calls: rank 0: ...; rank 1: ..."; where nothing but their positions in the training
// differs: in what, and what to do. The lower rank comes first.
std::string describe_mismatch(const CallOfRank& one, const CallOfRank& other);

}  // namespace lockstep
