#include "lockstep/core/log.h"

#include <spdlog/sinks/stdout_sinks.h>

#include <memory>

#include "lockstep/core/environment.h"

namespace lockstep::log {

spdlog::logger& logger() {
  // Never destroyed: threads and destructors may log until the very end of the process.
  static spdlog::logger* const kLogger = [] {
    auto* made = new spdlog::logger("lockstep", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("lockstep %l: %v");
    made->set_level(spdlog::level::from_str(env::text(env::kLogLevel).value_or("info")));
    made->flush_on(spdlog::level::trace);
    return made;
  }();
  return *kLogger;
}

void set_rank(int rank, int world_size) {
  if (world_size > 1) logger().set_pattern(fmt::format("lockstep %l (rank {}): %v", rank));
}

}  // namespace lockstep::log
