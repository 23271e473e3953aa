// Log lines on stderr: `log::info("read {} images", n)`. Level from LOCKSTEP_LOG_LEVEL. Any thread may log; nothing is
// thrown.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <string>

#pragma GCC visibility push(default)
namespace lockstep::log {

enum class Level { kDebug, kInfo, kWarning, kError };

// Lines carry the rank once this was called (lockrun adds its own prefix, so not then).
void set_rank(int rank, int world_size);

// Formats and writes one line, if the level is on. One function for all types, so that a logged line costs its caller's
// build little.
void write(Level level, fmt::string_view format, fmt::format_args args);

// From now on every line that is written also goes to `sink` (level and text, without prefix), on the thread that logs;
// an empty one ends that. For tests and for programs that show the log elsewhere. Calls of `sink` do not overlap, and
// none is under way once set_sink has returned (but for one that called it). It may be called with locks of the library
// held: it must not call the library. An exception from it is dropped, and a line that it logs itself goes to stderr
// alone.
void set_sink(std::function<void(Level, const std::string&)> sink);

template <typename... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kDebug, format, fmt::make_format_args(args...));
}
template <typename... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kInfo, format, fmt::make_format_args(args...));
}
template <typename... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kWarning, format, fmt::make_format_args(args...));
}
template <typename... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kError, format, fmt::make_format_args(args...));
}

}  // namespace lockstep::log
#pragma GCC visibility pop
