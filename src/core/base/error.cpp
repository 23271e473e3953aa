#include "lockstep/core/error.h"

const char lockstep_headers_0_2_need_library_0_2__install_both_of_one_version_and_compile_again = 1;

namespace lockstep::internal {

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  throw std::logic_error(fmt::format("{}:{}: broken invariant '{}': {} (a defect in lockstep, please report it)", file,
                                     line, condition, message));
}

}  // namespace lockstep::internal
