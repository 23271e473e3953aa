// Log lines on stderr: `log::info("read {} images", n)`. LOCKSTEP_LOG_LEVEL sets the level. Any thread may log; nothing
// is thrown.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <string>

#pragma GCC visibility push(default)
namespace lockstep::log {

enum class Level { kDebug, kInfo, kWarning, kError };

// From now on lines begin with the rank. Not needed under lockrun, which adds its own prefix.
void set_rank(int rank, int world_size);

// Formats and writes one line if the level is enabled. Not a template, so that callers compile fast.
void write(Level level, fmt::string_view format, fmt::format_args args);

// From now on every written line is also passed to `sink` (level and text, without prefix), on the thread that logs; an
// empty function ends that. For tests, and for programs that show the log elsewhere. Calls of `sink` do not overlap,
// and none is running when set_sink has returned (except the one that called it). The library may hold locks during the
// call, so the sink must not call the library. Exceptions from it are dropped, and lines that it logs itself go only to
// stderr.
void set_sink(std::function<void(Level, const std::string&)> sink);

template <typename... Args> void debug(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kDebug, format, fmt::make_format_args(args...));
}
template <typename... Args> void info(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kInfo, format, fmt::make_format_args(args...));
}
template <typename... Args> void warn(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kWarning, format, fmt::make_format_args(args...));
}
template <typename... Args> void error(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kError, format, fmt::make_format_args(args...));
}

}  // namespace lockstep::log
#pragma GCC visibility pop
