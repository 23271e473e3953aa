#include "lockstep/core/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <mutex>

#include "lockstep/core/environment.h"

namespace lockstep::log {
namespace {

spdlog::logger& logger() {
  // Never destroyed: threads and destructors may log until the end of the process.
  static spdlog::logger* const kLogger = [] {
    auto* made = new spdlog::logger("lockstep", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("lockstep %l: %v");
    made->set_level(spdlog::level::from_str(env::text(env::kLogLevel).value_or("info")));
    made->flush_on(spdlog::level::trace);
    return made;
  }();
  return *kLogger;
}

struct Sink {
  std::recursive_mutex mutex;  // a sink may remove itself
  std::function<void(Level, const std::string&)> write;
};

Sink& sink() {
  static Sink* const kSink = new Sink;  // never destroyed, like the logger
  return *kSink;
}

thread_local bool is_in_sink = false;

void write_to_sink(Level level, const std::string& text) {
  if (is_in_sink) return;
  const std::lock_guard lock(sink().mutex);
  const auto write = sink().write;  // a copy, which stays valid while it runs
  if (!write) return;
  is_in_sink = true;
  try {
    write(level, text);
  } catch (...) {
  }
  is_in_sink = false;
}

spdlog::level::level_enum as_spdlog(Level level) {
  switch (level) {
    case Level::kDebug: return spdlog::level::debug;
    case Level::kInfo: return spdlog::level::info;
    case Level::kWarning: return spdlog::level::warn;
    case Level::kError: break;
  }
  return spdlog::level::err;
}

}  // namespace

void set_rank(int rank, int world_size) {
  if (world_size > 1) logger().set_pattern(fmt::format("lockstep %l (rank {}): %v", rank));
}

void set_sink(std::function<void(Level, const std::string&)> write) {
  const std::lock_guard lock(sink().mutex);
  sink().write = std::move(write);
}

void write(Level level, fmt::string_view format, fmt::format_args args) {
  try {
    if (!logger().should_log(as_spdlog(level))) return;
    const std::string text = fmt::vformat(format, args);
    logger().log(as_spdlog(level), spdlog::string_view_t(text));
    write_to_sink(level, text);
  } catch (...) {
    return;  // failure to log is no reason to end a training; destructors log as well
  }
}

}  // namespace lockstep::log
