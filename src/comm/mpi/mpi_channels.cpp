#include "src/comm/mpi/mpi_channels.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "src/comm/mpi/library/mpi_runtime.h"
#include "src/comm/net/backoff.h"

namespace lockstep::mpi {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

constexpr int kTag = 0;
constexpr microseconds kShortestNap(20), kLongestNap(1000);

}  // namespace

Channels::Channels(const Place& place, MPI_Comm communicator, LocalGroupError& group_error)
    : place_(place),
      communicator_(communicator),
      group_error_(group_error),
      peers_(static_cast<std::size_t>(place.world_size)) {}

bool Channels::is_over(MPI_Request& request, MPI_Status* status) noexcept {
  int is_done = 0;
  if (const int code = api().MPI_Test(&request, &is_done, status); code != MPI_SUCCESS) failure_ = code;
  return is_done != 0;
}

std::size_t Channels::write(int peer, const std::byte* data, std::size_t bytes) noexcept {
  const auto held = lock();
  Peer& to = peers_[static_cast<std::size_t>(peer)];
  Chunk& chunk = to.out[to.next_out];
  if (failure_ != MPI_SUCCESS || has_given_up() || !is_over(chunk.request)) return 0;
  chunk.bytes.resize(kChunkBytes);
  const std::size_t taken = std::min(bytes, kChunkBytes);
  std::memcpy(chunk.bytes.data(), data, taken);
  failure_ =
      api().MPI_Isend(chunk.bytes.data(), static_cast<int>(taken), MPI_BYTE, peer, kTag, communicator_, &chunk.request);
  if (failure_ != MPI_SUCCESS) return 0;
  to.next_out = (to.next_out + 1) % kChunks;
  moved_ = Clock::now();
  return taken;
}

// Receives the peer's next chunk if there is one. It probes first, so that silent peers need no memory.
bool Channels::fill(int peer) {
  const auto held = lock();
  throw_if_given_up();
  check(failure_, "MPI_Isend");
  Peer& from = peers_[static_cast<std::size_t>(peer)];
  if (from.in.request == MPI_REQUEST_NULL) {
    int has_come = 0;
    check(api().MPI_Iprobe(peer, kTag, communicator_, &has_come, MPI_STATUS_IGNORE), "MPI_Iprobe");
    if (has_come == 0) return false;
    from.in.bytes.resize(kChunkBytes);
    check(api().MPI_Irecv(from.in.bytes.data(), kChunkBytes, MPI_BYTE, peer, kTag, communicator_, &from.in.request),
          "MPI_Irecv");
  }
  MPI_Status status;
  if (!is_over(from.in.request, &status)) return false;
  check(failure_, "MPI_Irecv");
  int bytes = 0;
  check(api().MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
  from.in_begin = 0;
  from.in_end = static_cast<std::size_t>(bytes);
  return true;
}

std::size_t Channels::read(int peer, std::byte* data, std::size_t bytes) {
  Peer& from = peers_[static_cast<std::size_t>(peer)];
  if (from.in_begin == from.in_end && !fill(peer)) return 0;
  const std::size_t taken = std::min(bytes, from.in_end - from.in_begin);
  std::memcpy(data, from.in.bytes.data() + from.in_begin, taken);
  from.in_begin += taken;
  moved_ = Clock::now();
  return taken;
}

// MPI has nothing to sleep on. A wait that has just begun, or in which data has just moved, yields; later ones sleep
// for longer times.
void Channels::wait(const std::vector<bool>&, Clock::time_point until) noexcept {
  const auto now = Clock::now();
  if (now - waited_.load() > 2 * kYieldFor) moved_ = now;
  const auto still_for = std::chrono::duration_cast<microseconds>(now - moved_.load());
  if (still_for < kYieldFor) {
    sched_yield();
  } else {
    const auto nap = std::clamp(still_for / 16, kShortestNap, kLongestNap);
    std::unique_lock own(mutex_);
    interrupted_changed_.wait_until(own, std::min(until, now + nap), [this] { return interrupted_; });
  }
  const std::lock_guard own(mutex_);
  interrupted_ = false;
  waited_ = Clock::now();
}

void Channels::interrupt() noexcept {
  const std::lock_guard own(mutex_);
  interrupted_ = true;
  interrupted_changed_.notify_all();
}

void Channels::throw_if_over(const std::function<std::string()>& doing) {
  if (group_error_.stands()) throw_group_error(group_error_.get(), doing());
}

void Channels::end(GroupErrorKind kind, const std::string& text, const std::string& doing) {
  group_error_.declare(kind, text);
  throw_group_error(group_error_.get(), doing);
}

std::string Channels::name_of_rank(int rank) const { return fmt::format("rank {}", rank); }

bool Channels::is_idle() noexcept {
  const auto held = lock();
  if (has_given_up()) return false;
  for (Peer& peer : peers_) {
    if (peer.in.request != MPI_REQUEST_NULL && !is_over(peer.in.request)) return false;
    for (Chunk& chunk : peer.out)
      if (chunk.request != MPI_REQUEST_NULL && !is_over(chunk.request)) return false;
  }
  return true;
}

}  // namespace lockstep::mpi
