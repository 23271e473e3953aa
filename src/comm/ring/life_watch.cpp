#include "src/comm/ring/life_watch.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <vector>

#include "lockstep/core/error.h"
#include "src/comm/socket.h"

namespace lockstep::ring {

namespace {

// polls[0] is the stop signal, polls[r + 1] the life line of rank r; a negative descriptor is passed over.
void watch(std::vector<pollfd> polls, const std::function<void(int)>& gone) {
  while (true) {
    if (poll(polls.data(), polls.size(), -1) < 0) {
      if (errno == EINTR) continue;
      return;  // only for want of memory; the deadlines still hold
    }
    if (polls[0].revents != 0) return;
    for (std::size_t i = 1; i < polls.size(); ++i) {
      if (polls[i].revents == 0) continue;
      polls[i].fd = -1;
      gone(static_cast<int>(i) - 1);
    }
  }
}

}  // namespace

LifeWatch::LifeWatch(std::span<const int> lines, std::function<void(int)> gone) {
  if (std::all_of(lines.begin(), lines.end(), [](int fd) { return fd < 0; })) return;
  stop_ = Fd(eventfd(0, EFD_CLOEXEC));
  if (!stop_) throw Error("ring: cannot watch the peers' processes: {}", std::strerror(errno));
  std::vector<pollfd> polls{{stop_.get(), POLLIN, 0}};
  for (const int fd : lines) polls.push_back({fd, 0, 0});  // a hang-up is reported without being asked for
  thread_ = std::thread([polls = std::move(polls), gone = std::move(gone)]() mutable { watch(std::move(polls), gone); });
}

LifeWatch::~LifeWatch() {
  if (!thread_.joinable()) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(stop_.get(), &one, sizeof one);  // an eventfd at 0 takes it
  thread_.join();
}

}  // namespace lockstep::ring
