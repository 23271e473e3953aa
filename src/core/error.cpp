#include "lockstep/core/error.h"

#include <cstdio>
#include <exception>

namespace lockstep {

namespace internal {

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  throw std::logic_error(fmt::format("{}:{}: broken invariant '{}': {} (a defect in lockstep, please report it)", file, line, condition, message));
}

}  // namespace internal

namespace {

int report(const char* program, const char* message, int exit_code) {
  std::fprintf(stderr, "%s: error: %s\n", program, message);
  std::fflush(nullptr);
  return exit_code;
}

}  // namespace

int run_main(const char* program, int (*body)(int argc, char** argv), int argc, char** argv) {
  try {
    const int exit_code = body(argc, argv);
    std::fflush(nullptr);
    return exit_code;
  } catch (const PeerLost& error) {
    return report(program, error.what(), kPeerLostExitCode);
  } catch (const InvalidArgument& error) {
    return report(program, error.what(), 2);
  } catch (const std::exception& error) {
    return report(program, error.what(), 1);
  }
}

}  // namespace lockstep
