// Log lines on stderr, by spdlog: `log::info("read {} images", n)`. Level from LOCKSTEP_LOG_LEVEL.
#pragma once

#include <spdlog/spdlog.h>

namespace lockstep::log {

// The library's logger; its lines carry the rank once set_rank() was called (lockrun adds its own prefix, so not then).
spdlog::logger& logger();
void set_rank(int rank, int world_size);

template <typename... Args>
void debug(spdlog::format_string_t<Args...> format, Args&&... args) {
  logger().debug(format, std::forward<Args>(args)...);
}
template <typename... Args>
void info(spdlog::format_string_t<Args...> format, Args&&... args) {
  logger().info(format, std::forward<Args>(args)...);
}
template <typename... Args>
void warn(spdlog::format_string_t<Args...> format, Args&&... args) {
  logger().warn(format, std::forward<Args>(args)...);
}
template <typename... Args>
void error(spdlog::format_string_t<Args...> format, Args&&... args) {
  logger().error(format, std::forward<Args>(args)...);
}

}  // namespace lockstep::log
