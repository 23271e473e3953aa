#include "src/comm/host/machine/activity.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep::host {

std::string seconds_text(std::chrono::steady_clock::duration time) {
  const double seconds = std::max(0.0, std::chrono::duration<double>(time).count());
  return seconds < 9.95 ? fmt::format("{:.1f} s", seconds) : fmt::format("{:.0f} s", seconds);
}

std::string Activity::text() const {
  const std::string what_for(purpose, strnlen(purpose, sizeof purpose));
  const std::string number = index >= 0 ? fmt::format("{}{}", what_for.empty() ? "index " : " ", index) : "";
  const std::string call = fmt::format("{} #{}", name_of(kind()), sequence());
  return what_for.empty() && number.empty() ? call : fmt::format("{} ({}{})", call, what_for, number);
}

Activity ActivityRecord::read() const {
  Activity activity;
  activity.word = word.load(std::memory_order_acquire);
  activity.index = index.load(std::memory_order_relaxed);
  for (std::size_t i = 0; i < std::size(purpose); ++i) {
    const std::uint64_t bytes = purpose[i].load(std::memory_order_relaxed);
    std::memcpy(activity.purpose + 8 * i, &bytes, sizeof bytes);
  }
  return activity;
}

void ActivityWriter::write_purpose(const char* name) {
  last_name_ = name;
  char text[Activity::kPurposeBytes] = {};
  if (name != nullptr) std::memcpy(text, name, std::min(std::strlen(name), sizeof text - 1));
  for (std::size_t i = 0; i < std::size(record_->purpose); ++i) {
    std::uint64_t bytes;
    std::memcpy(&bytes, text + 8 * i, sizeof bytes);
    record_->purpose[i].store(bytes, std::memory_order_relaxed);
  }
}

std::string Sighting::last_seen(std::chrono::steady_clock::time_point now) const {
  if (activity.state() == Activity::kNone) return "had made no call yet";
  if (activity.state() == Activity::kInside)
    return fmt::format("was last seen in {}, {} ago", activity.text(), seconds_text(now - seen_at));
  return fmt::format("had finished {} {} ago and was in the program's own code", activity.text(),
                     seconds_text(now - since));
}

// A heartbeat's content is as old as the heartbeat.
std::string Sighting::whereabouts(std::chrono::steady_clock::time_point now) const {
  constexpr auto kFresh = std::chrono::milliseconds(100);
  if (seen_at == std::chrono::steady_clock::time_point()) return "has sent no heartbeat yet";
  const auto old = now - seen_at;
  const std::string by = old > kFresh ? fmt::format(", by its heartbeat of {} ago", seconds_text(old)) : "";
  if (activity.state() == Activity::kNone) return "has made no call yet" + by;
  const std::string call = activity.text(), time = seconds_text(now - since);
  if (activity.state() == Activity::kInside) return fmt::format("has been in {} for {}{}", call, time, by);
  return fmt::format("has finished {} {} ago and made no call since{}: it is in the program's own code", call, time,
                     by);
}

}  // namespace lockstep::host
