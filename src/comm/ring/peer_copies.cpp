#include "src/comm/ring/peer_copies.h"

#include <fmt/format.h>
#include <sched.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "lockstep/core/environment.h"

namespace lockstep::ring {

namespace {

constexpr auto kPatience = std::chrono::milliseconds(500);

}  // namespace

PeerCopies::PeerCopies(const ControlLayout& layout, int rank, PeerMemory* memory, Rounds& rounds, GroupWatch& watch)
    : layout_(layout),
      rank_(rank),
      memory_(memory),
      rounds_(rounds),
      watch_(watch),
      reaching_(layout.block(rank).reaching),
      buffers_(static_cast<std::size_t>(layout.ranks())) {}

void PeerCopies::Reaching::read(int peer, void* to, std::size_t offset, std::size_t bytes) {
  copies_.rounds_.throw_if_over();
  const std::uint64_t from = copies_.buffers_[static_cast<std::size_t>(peer)] + offset;
  if (const int error = copies_.memory_->read(peer, to, from, bytes)) copies_.fail("read", peer, offset, bytes, error);
}

void PeerCopies::Reaching::write(int peer, std::size_t offset, const void* from, std::size_t bytes) {
  copies_.rounds_.throw_if_over();
  const std::uint64_t to = copies_.buffers_[static_cast<std::size_t>(peer)] + offset;
  if (const int error = copies_.memory_->write(peer, to, from, bytes)) copies_.fail("write", peer, offset, bytes, error);
}

void PeerCopies::await_no_peer_reaches() noexcept {
  const auto until = std::chrono::steady_clock::now() + kPatience;
  for (int peer = 0; peer < layout_.ranks(); ++peer)
    while (peer != rank_ && layout_.block(peer).reaching.load() != 0 && std::chrono::steady_clock::now() < until) sched_yield();
}

void PeerCopies::fail(const char* what, int peer, std::size_t offset, std::size_t bytes, int error) {
  const std::string copy = fmt::format("rank {} could not {} {} bytes at byte {} of the buffer of {}: {}", watch_.rank(), what, bytes,
                                       offset, watch_.name_of_local(peer), std::strerror(error));
  if (error == ESRCH)
    watch_.declare(VerdictKind::kPeerLost, copy + ", it died");
  else if (error == EFAULT)
    watch_.declare(VerdictKind::kFailed, copy + "; is that buffer smaller than its call says, read-only, or freed already?");
  else
    watch_.declare(
        VerdictKind::kFailed,
        fmt::format("{}; the system allowed it when the group was made. A table with \"plain_path\": \"tiles\" in {} does without", copy,
                    env::kTuning));
  watch_.throw_verdict(rounds_.doing());
}

}  // namespace lockstep::ring
