// Large messages in memory that is not registered, by the kernel's copies from one process to another: the owner of a slice
// reads the peers' values piece by piece, sums them, and writes the results where they belong; who lacks data reads it.
// n-1 copies in, and for all_reduce n-1 out, of every element. See shm_transport.h.
//
// While peers reach into a rank's memory it must not give that memory back. A call that succeeds ends with a round; one that
// fails waits until no peer is reaching any more: whoever reaches says so in its block first, and asks for the verdict after
// that and between pieces. Only a process that is stopped in the middle of a piece keeps the others waiting, for kPatience.
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "lockstep/core/environment.h"
#include "src/comm/ring/shm_transport.h"

namespace lockstep::ring {

namespace {

constexpr std::size_t kPullBytes = 1024 * 1024;  // of one system call that only moves data
constexpr auto kPatience = std::chrono::milliseconds(500);

}  // namespace

// Says that this rank reaches into others' memory.
class ShmTransport::Reaching {
 public:
  Reaching(ShmTransport& transport) : transport_(transport), flag_(transport.layout_.block(transport.place_.rank).reaching) {
    flag_.store(1);
  }
  ~Reaching() { flag_.store(0); }
  Reaching(const Reaching&) = delete;
  Reaching& operator=(const Reaching&) = delete;

  void read(int peer, void* to, std::size_t offset, std::size_t bytes) {
    transport_.rounds_.throw_if_over();
    const std::uint64_t from = transport_.addresses_[static_cast<std::size_t>(peer)] + offset;
    if (const int error = transport_.peer_memory_->read(peer, to, from, bytes)) transport_.fail_copy("read", peer, offset, bytes, error);
    transport_.count_read(bytes);
  }
  void write(int peer, std::size_t offset, const void* from, std::size_t bytes) {
    transport_.rounds_.throw_if_over();
    const std::uint64_t to = transport_.addresses_[static_cast<std::size_t>(peer)] + offset;
    if (const int error = transport_.peer_memory_->write(peer, to, from, bytes)) transport_.fail_copy("write", peer, offset, bytes, error);
  }

 private:
  ShmTransport& transport_;
  std::atomic<std::uint32_t>& flag_;
};

void ShmTransport::reduce_by_vm(const Signature& call, const VmShare& share) {
  const std::size_t element = size_of(call.dtype), per_piece = tuning_.vm_piece_bytes / element;
  vm_pieces_.resize(in_.size() * tuning_.vm_piece_bytes);  // the same size every time
  const auto piece_of = [&](int rank) { return vm_pieces_.data() + static_cast<std::size_t>(rank) * tuning_.vm_piece_bytes; };
  Reaching reaching(*this);
  for (std::size_t begin = 0; begin < share.count; begin += per_piece) {
    const std::size_t count = std::min(per_piece, share.count - begin), bytes = count * element, at = share.offset + begin * element;
    for (int rank = 0; rank < ranks(); ++rank) {
      in_[static_cast<std::size_t>(rank)] = rank == place_.rank ? share.own + begin * element : piece_of(rank);
      if (rank != place_.rank) reaching.read(rank, piece_of(rank), at, bytes);
    }
    out_[0] = share.result != nullptr ? share.result + begin * element : piece_of(place_.rank);
    reduce(call, 1, count);
    for (int rank = 0; rank < ranks(); ++rank)
      if (rank != place_.rank && (share.to == VmShare::kAll || share.to == rank)) reaching.write(rank, at, out_[0], bytes);
  }
}

void ShmTransport::pull_by_vm() {
  Reaching reaching(*this);
  for (const Pull& pull : pulls_)
    for (std::size_t begin = 0; begin < pull.bytes; begin += kPullBytes)
      reaching.read(pull.peer, pull.to + begin, pull.offset + begin, std::min(kPullBytes, pull.bytes - begin));
}

void ShmTransport::await_no_peer_reaches() noexcept {
  const auto until = std::chrono::steady_clock::now() + kPatience;
  for (int peer = 0; peer < ranks(); ++peer)
    while (peer != place_.rank && layout_.block(peer).reaching.load() != 0 && std::chrono::steady_clock::now() < until) sched_yield();
}

void ShmTransport::fail_copy(const char* what, int peer, std::size_t offset, std::size_t bytes, int error) {
  const std::string copy = fmt::format("rank {} could not {} {} bytes at byte {} of the buffer of {}: {}", place_.rank, what, bytes, offset,
                                       rounds_.name_of_rank(peer), std::strerror(error));
  if (error == ESRCH)
    verdict_.declare(VerdictKind::kPeerLost, copy + ", it died");
  else if (error == EFAULT)
    verdict_.declare(VerdictKind::kFailed, copy + "; is that buffer smaller than its call says, read-only, or freed already?");
  else
    verdict_.declare(VerdictKind::kFailed, fmt::format("{}; the system allowed it when the group was made. A table with \"plain_path\": "
                                                       "\"tiles\" in {} does without",
                                                       copy, env::kTuning));
  throw_verdict(verdict_.get(), rounds_.doing());
}

}  // namespace lockstep::ring
