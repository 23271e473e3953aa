#include "lockstep/comm/work.h"

#include <algorithm>
#include <functional>
#include <thread>
#include <vector>

#include "lockstep/core/error.h"

namespace lockstep {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::microseconds kShortestNap(20), kLongestNap(1000);
constexpr std::chrono::hours kLongest(30 * 24);  // a longer one would overflow when it is added to a clock

std::optional<std::size_t> ask_until(std::size_t works, const std::function<bool(std::size_t)>& is_done,
                                     Clock::time_point until) {
  for (auto nap = kShortestNap;; nap = std::min(2 * nap, kLongestNap)) {
    for (std::size_t i = 0; i < works; ++i)
      if (is_done(i)) return i;
    if (Clock::now() >= until) return std::nullopt;
    std::this_thread::sleep_for(nap);
  }
}

}  // namespace

std::optional<std::size_t> CompletionQueue::wait_any(std::span<const std::uint64_t> tickets, Clock::time_point until) {
  return ask_until(
      tickets.size(), [&](std::size_t i) { return done(tickets[i]); }, until);
}

std::optional<std::size_t> wait_any(std::span<const Work> works, std::chrono::milliseconds timeout) {
  if (works.empty()) throw InvalidArgument("wait_any: the list of works is empty");
  const auto until = Clock::now() + std::min<std::chrono::milliseconds>(timeout, kLongest);
  const auto& queue = works.front().queue_;
  if (!queue || std::any_of(works.begin(), works.end(), [&](const Work& work) { return work.queue_ != queue; }))
    return ask_until(
        works.size(), [&](std::size_t i) { return works[i].done(); }, until);
  std::vector<std::uint64_t> tickets;
  for (const Work& work : works) tickets.push_back(work.ticket_);
  return queue->wait_any(tickets, until);
}

}  // namespace lockstep
