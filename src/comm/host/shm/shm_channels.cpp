#include "src/comm/host/shm/shm_channels.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "src/comm/host/machine/futex.h"

namespace lockstep::host {

namespace {

using Clock = std::chrono::steady_clock;

// So that a goodbye that came just before the sleep is seen.
constexpr auto kSleepSlice = std::chrono::milliseconds(50);

}  // namespace

ShmChannels::ShmChannels(const ControlLayout& layout, int rank, FailureDetector& detector)
    : layout_(layout), rank_(rank), bytes_(channel_bytes(layout.ranks())), detector_(detector) {}

// The counts and `sleepers` are sequentially consistent: either a sleeper sees the moved data, or the mover sees the
// sleeper. A relaxed load below is of the count that this rank itself stores; the load of the peer's count orders the
// copy after the peer's.
void ShmChannels::wake_peers() {
  if (layout_.control().sleepers.load() != 0) detector_.wake_all();
}

std::size_t ShmChannels::write(int peer, const std::byte* data, std::size_t bytes) noexcept {
  Channel& channel = layout_.channel(rank_, peer);
  const std::uint64_t written = channel.written.load(std::memory_order_relaxed);
  const std::uint64_t room = bytes_ - (written - channel.read.load());
  const std::size_t count = std::min<std::size_t>(bytes, room), at = written % bytes_;
  if (count == 0) return 0;
  const std::size_t first = std::min(count, bytes_ - at);
  std::memcpy(channel.bytes() + at, data, first);
  std::memcpy(channel.bytes(), data + first, count - first);
  channel.written.store(written + count);
  has_yielded_.store(false, std::memory_order_relaxed);
  wake_peers();
  return count;
}

std::size_t ShmChannels::read(int peer, std::byte* data, std::size_t bytes) {
  Channel& channel = layout_.channel(peer, rank_);
  const std::uint64_t read = channel.read.load(std::memory_order_relaxed);
  const std::size_t count = std::min<std::size_t>(bytes, channel.written.load() - read), at = read % bytes_;
  if (count == 0) return 0;
  const std::size_t first = std::min(count, bytes_ - at);
  std::memcpy(data, channel.bytes() + at, first);
  std::memcpy(data + first, channel.bytes(), count - first);
  channel.read.store(read + count);
  has_yielded_.store(false, std::memory_order_relaxed);
  wake_peers();
  return count;
}

// A writer waits until a large part of the channel is free: ranks that share a core would otherwise switch for a few
// bytes.
bool ShmChannels::can_move(const std::vector<bool>& writing) const {
  for (int peer = 0; peer < layout_.ranks(); ++peer) {
    if (peer == rank_) continue;
    const Channel& in = layout_.channel(peer, rank_);
    if (in.written.load() != in.read.load()) return true;
    const Channel& out = layout_.channel(rank_, peer);
    if (writing[static_cast<std::size_t>(peer)] && out.written.load() - out.read.load() <= bytes_ - bytes_ / 4)
      return true;
  }
  return detector_.over();
}

// As in rounds.cpp, but without pauses, since moving bytes has taken longer than they would. Yields once, then sleeps
// repeatedly.
void ShmChannels::wait(const std::vector<bool>& writing, Clock::time_point until) noexcept {
  const auto woken = [&] { return can_move(writing) || interrupted_.exchange(false); };
  if (!has_yielded_.exchange(true) && yields_.until(woken, until)) return;
  ControlBlock& control = layout_.control();
  control.sleepers.fetch_add(1);
  const std::uint32_t seen = control.wake_word.load();
  if (!woken()) {
    const auto rest = std::chrono::duration_cast<std::chrono::nanoseconds>(until - Clock::now());
    futex_wait(control.wake_word, seen,
               std::clamp<std::chrono::nanoseconds>(rest, std::chrono::microseconds(1), kSleepSlice));
  }
  control.sleepers.fetch_sub(1);
}

void ShmChannels::interrupt() noexcept {
  interrupted_.store(true);
  detector_.wake_all();
}

void ShmChannels::throw_if_over(const std::function<std::string()>& doing) { detector_.throw_if_over(doing); }

void ShmChannels::end(GroupErrorKind kind, const std::string& text, const std::string& doing) {
  detector_.declare(kind, text);
  detector_.throw_group_error(doing);
}

std::string ShmChannels::name_of_rank(int rank) const { return detector_.name_of_local(rank); }

}  // namespace lockstep::host
