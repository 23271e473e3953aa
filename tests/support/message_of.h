// The text of the exception that a call throws.
#pragma once

#include <functional>
#include <string>

#include "lockstep/core/error.h"

namespace lockstep {

inline std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace lockstep
