// A failure that comes from outside throws an Error; a broken invariant of our own is LOCKSTEP_CHECK.
//
// A message carries the operation, the rank, the peer, what was expected, what came, and what to do about it.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>

#include "lockstep/core/version.h"

#pragma GCC visibility push(default)
namespace lockstep {

// Base of everything that the library throws on purpose. The text is complete: print it and leave.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(message) {}

  template <typename... Args>
  explicit Error(fmt::format_string<Args...> format, Args&&... args)
      : Error(fmt::vformat(format, fmt::make_format_args(args...))) {}
};

// A caller's argument, flag or environment variable that cannot be used.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

// A file that is missing, truncated or damaged, or a disk that refused a write.
class FileError : public Error {
 public:
  using Error::Error;
};

// The store did not answer, refused us, or a peer did not reach the rendezvous in time.
class RendezvousError : public Error {
 public:
  using Error::Error;
};

// Ranks of one group disagree: another collective, another model, another checkpoint.
class MismatchError : public Error {
 public:
  using Error::Error;
};

// A collective did not complete before its deadline although no peer is known to be dead.
class TimeoutError : public Error {
 public:
  using Error::Error;
};

// A peer died or left while it was still needed, or the group was aborted. The group is unusable from then on.
class PeerLost : public Error {
 public:
  using Error::Error;
};

// Exit code of a rank that stops because *another* rank failed (PeerLost): lockrun tells consequence from cause by it.
inline constexpr int kPeerLostExitCode = 75;  // EX_TEMPFAIL of sysexits.h

// Runs a program's main and turns an escaped exception into one line on stderr and an exit code: PeerLost gives
// kPeerLostExitCode, InvalidArgument 2, every other exception 1, and so does output that could not be written. `body`
// returns the exit code of a good run. Under other launchers than lockrun, which blame the first process that leaves, a
// rank that lost a peer leaves 0.5 s later; torchrun finds the reason in its TORCHELASTIC_ERROR_FILE.
int run_main(const char* program, int (*body)(int argc, char** argv), int argc, char** argv);

namespace internal {
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);
}

}  // namespace lockstep
#pragma GCC visibility pop

// An invariant of ours: always on, throws std::logic_error with file, line, condition and the formatted message.
#define LOCKSTEP_CHECK(condition, ...)                                                                \
  do {                                                                                                \
    if (!(condition)) [[unlikely]]                                                                    \
      ::lockstep::internal::check_failed(__FILE__, __LINE__, #condition, ::fmt::format(__VA_ARGS__)); \
  } while (false)
