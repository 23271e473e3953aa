// Apart from error.cpp, which is also in the CUDA part: that one has no main and no signals of its own.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string_view>
#include <system_error>

#include "lockstep/core/error.h"
#include "src/core/first_process.h"
#include "src/core/process_limits.h"
#include "src/core/standard_streams.h"

namespace lockstep {

namespace {

int report(const char* program, const char* message, int exit_code) {
  std::fprintf(stderr, "%s: error: %s\n", program, message);
  std::fflush(nullptr);
  return exit_code;
}

// All output must have been written: a full disk is no success.
int finish(const char* program, int exit_code) {
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (!written && exit_code == 0) return report(program, "the standard output could not be written: is the disk full?", 1);
  std::fflush(nullptr);
  return exit_code;
}

}  // namespace

int run_main(const char* program, int (*body)(int argc, char** argv), int argc, char** argv) {
  occupy_standard_streams();
  end_on_signals_as_first_process();
  try {
    return finish(program, body(argc, argv));
  } catch (const PeerLost& error) {
    return report(program, error.what(), kPeerLostExitCode);
  } catch (const InvalidArgument& error) {
    return report(program, error.what(), 2);
  } catch (const std::system_error& error) {
    // std::thread's text is the number's and no more.
    const bool is_of_thread = error.code().value() == EAGAIN && error.what() == std::string_view(std::strerror(EAGAIN));
    return report(program, is_of_thread ? why_not_started(EAGAIN).c_str() : error.what(), 1);
  } catch (const std::exception& error) {
    return report(program, error.what(), 1);
  }
}

}  // namespace lockstep
