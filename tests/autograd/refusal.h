// Returns the message with which an operator rejects its arguments.
#pragma once

#include <string>

#include "lockstep/core/error.h"

namespace lockstep {

template <typename Call> std::string refusal(Call&& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was refused";
}

}  // namespace lockstep
