// Checks of optimizer options.
#pragma once

#include <cmath>

#include "lockstep/core/error.h"

namespace lockstep::optim {

inline void require_not_negative(const char* kind, const char* option, double value) {
  if (!std::isfinite(value) || value < 0)
    throw InvalidArgument("{}: got {} {}, expected a finite number of 0 or more", kind, option, value);
}
inline void require_share(const char* kind, const char* option, double value) {
  if (!(value >= 0) || value >= 1)
    throw InvalidArgument("{}: got {} {}, expected at least 0 and below 1", kind, option, value);
}

}  // namespace lockstep::optim
