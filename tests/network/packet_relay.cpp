#include "tests/network/packet_relay.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>

namespace lockstep::testing {

namespace {

// The size of a router's queue; more packets are dropped, and TCP slows down.
constexpr std::size_t kMostPackets = 4096;
constexpr int kPacketsInARow = 64;

}  // namespace

PacketRelay::PacketRelay(std::vector<Fd> tunnels)
    : tunnels_(std::move(tunnels)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), thread_([this] { run(); }) {}

PacketRelay::~PacketRelay() {
  stop_.store(true);
  ::eventfd_write(wake_.get(), 1);
  thread_.join();
}

void PacketRelay::set(const Conditions& conditions) {
  const std::lock_guard lock(mutex_);
  conditions_ = conditions;
}

void PacketRelay::cut(int machine, bool is_cut) {
  const std::uint64_t bit = std::uint64_t{1} << machine;
  if (is_cut)
    cuts_.fetch_or(bit);
  else
    cuts_.fetch_and(~bit);
}

void PacketRelay::run() {
  while (!stop_.load()) {
    wait();
    for (std::size_t machine = 0; machine < tunnels_.size(); ++machine) take_from(static_cast<int>(machine));
    deliver_what_is_due();
  }
}

// Waits until a packet arrives or is due. Delays are fractions of a millisecond, too short for poll().
void PacketRelay::wait() const {
  std::vector<pollfd> polled = {{wake_.get(), POLLIN, 0}};
  for (const Fd& tunnel : tunnels_) polled.push_back({tunnel.get(), POLLIN, 0});
  timespec limit{1, 0};
  if (!queue_.empty()) {
    const auto left = std::max(queue_.front().due - Clock::now(), Clock::duration::zero());
    limit = {std::chrono::duration_cast<std::chrono::seconds>(left).count(),
             static_cast<long>((left % std::chrono::seconds(1)).count())};
  }
  ::ppoll(polled.data(), polled.size(), &limit, nullptr);
}

void PacketRelay::take_from(int machine) {
  std::array<char, 65536> bytes;
  for (int i = 0; i < kPacketsInARow; ++i) {
    const ssize_t got = ::read(tunnels_[static_cast<std::size_t>(machine)].get(), bytes.data(), bytes.size());
    if (got <= 0) return;
    Packet packet{Clock::now(), ++arrivals_, -1, {bytes.data(), bytes.data() + got}};
    packet.to = destination_of(packet.bytes);
    if (packet.to < 0) continue;
    std::uniform_real_distribution<double> dice;
    const std::lock_guard lock(mutex_);
    if (is_cut(machine) || is_cut(packet.to) || dice(random_) < conditions_.loss || queue_.size() >= kMostPackets) {
      lost_.fetch_add(1);
      continue;
    }
    packet.due += conditions_.delay;
    if (dice(random_) < conditions_.overtaken) {
      packet.due += conditions_.overtaken_by;
      overtaken_.fetch_add(1);
    }
    queue_.push_back(std::move(packet));
    std::push_heap(queue_.begin(), queue_.end());
  }
}

void PacketRelay::deliver_what_is_due() {
  while (!queue_.empty() && queue_.front().due <= Clock::now()) {
    std::pop_heap(queue_.begin(), queue_.end());
    const Packet packet = std::move(queue_.back());
    queue_.pop_back();
    const int tunnel = tunnels_[static_cast<std::size_t>(packet.to)].get();
    const bool done = !is_cut(packet.to) && ::write(tunnel, packet.bytes.data(), packet.bytes.size()) > 0;
    (done ? delivered_ : lost_).fetch_add(1);
  }
}

// The last byte of the destination identifies the machine, in both versions of IP. Multicast packets (neighbour and
// router discovery) are dropped.
int PacketRelay::destination_of(const std::vector<char>& packet) const {
  const int version = packet.empty() ? 0 : static_cast<unsigned char>(packet[0]) >> 4;
  const std::size_t at = version == 4 ? 16 : 24, bytes = version == 4 ? 4 : 16;
  if ((version != 4 && version != 6) || packet.size() < at + bytes) return -1;
  const int first = static_cast<unsigned char>(packet[at]), last = static_cast<unsigned char>(packet[at + bytes - 1]);
  const bool of_the_lab = first == (version == 4 ? 10 : 0xfd);
  return of_the_lab && last >= 1 && last <= static_cast<int>(tunnels_.size()) ? last - 1 : -1;
}

}  // namespace lockstep::testing
