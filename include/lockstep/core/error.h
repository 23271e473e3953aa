// External failures throw an Error; violated internal invariants throw by LOCKSTEP_CHECK.
//
// A message has the operation, the rank, the peer, the expected and the actual value, and what to do.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>

#include "lockstep/core/version.h"

#pragma GCC visibility push(default)
namespace lockstep {

// Base class of all exceptions that the library throws deliberately. The text is complete: print it and exit.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(message) {}

  template <typename... Args> explicit Error(fmt::format_string<Args...> format, Args&&... args)
      : Error(fmt::vformat(format, fmt::make_format_args(args...))) {}
};

// A caller's argument, flag or environment variable is invalid.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

// A file is missing, truncated or damaged, or a disk refused a write.
class FileError : public Error {
 public:
  using Error::Error;
};

// The store did not answer or refused the connection, or a peer did not reach the rendezvous in time.
class RendezvousError : public Error {
 public:
  using Error::Error;
};

// Ranks of one group disagree: on the collective, the model or the checkpoint.
class MismatchError : public Error {
 public:
  using Error::Error;
};

// A collective did not complete before its deadline, although no peer is known to be dead.
class TimeoutError : public Error {
 public:
  using Error::Error;
};

// A peer died or left while it was still needed, or the group was aborted. The group cannot be used any more.
class PeerLost : public Error {
 public:
  using Error::Error;
};

// Exit code of a rank that stops because another rank failed (PeerLost). lockrun uses it to tell consequence from
// cause.
inline constexpr int kPeerLostExitCode = 75;  // EX_TEMPFAIL of sysexits.h

// Exit code of a rank that has saved its state because the job is to end early (a scheduler takes the machine): the job
// can be started again and continues from there. lockrun does not count it as a failure.
inline constexpr int kPreemptedExitCode = 85;

// Runs a program's main and turns an escaped exception into one line on stderr and an exit code: kPeerLostExitCode for
// PeerLost, 2 for InvalidArgument, 1 for all other exceptions and if output could not be written. `body` returns the
// exit code of a successful run. Other launchers than lockrun blame the first process that exits, so under them a rank
// that lost a peer exits 0.5 s later. torchrun reads the reason from the file TORCHELASTIC_ERROR_FILE.
int run_main(const char* program, int (*body)(int argc, char** argv), int argc, char** argv);

namespace internal {
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);
}

}  // namespace lockstep
#pragma GCC visibility pop

// Checks an internal invariant, also in release builds. Throws std::logic_error with file, line, condition and the
// formatted message.
#define LOCKSTEP_CHECK(condition, ...)                                                                \
  do {                                                                                                \
    if (!(condition)) [[unlikely]]                                                                    \
      ::lockstep::internal::check_failed(__FILE__, __LINE__, #condition, ::fmt::format(__VA_ARGS__)); \
  } while (false)
