#include "lockstep/core/error.h"

namespace lockstep::internal {

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  throw std::logic_error(
      fmt::format("{}:{}: broken invariant '{}': {} (a defect in lockstep, please report it)", file, line, condition, message));
}

}  // namespace lockstep::internal
