#include "src/comm/ring/peer_memory.h"

#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <span>

#include "lockstep/core/crypto.h"
#include "lockstep/core/error.h"

namespace lockstep::ring {

namespace {

using VmCall = ssize_t (*)(pid_t, const iovec*, unsigned long, const iovec*, unsigned long, unsigned long);

// The kernel stops at the first page that it cannot touch: the next call, which begins there, says why.
int copy_all(VmCall call, pid_t pid, std::byte* here, std::uint64_t there, std::size_t bytes) {
  while (bytes != 0) {
    const iovec local{here, bytes}, remote{reinterpret_cast<void*>(there), bytes};
    const ssize_t copied = call(pid, &local, 1, &remote, 1, 0);
    if (copied < 0 && errno == EINTR) continue;
    if (copied < 0) return errno;
    if (copied == 0) return EFAULT;
    here += copied;
    there += static_cast<std::uint64_t>(copied);
    bytes -= static_cast<std::size_t>(copied);
  }
  return 0;
}

ProbeWord random_word() {
  ProbeWord word;
  crypto::fill_random(word);
  return word;
}

}  // namespace

int ThreadMemory::read(int, void* to, std::uint64_t from, std::size_t bytes) {
  std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return 0;
}

int ThreadMemory::write(int, std::uint64_t to, const void* from, std::size_t bytes) {
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  return 0;
}

ProcessMemory::ProcessMemory(const ControlLayout& layout, int rank)
    : layout_(layout), rank_(rank), words_(static_cast<std::size_t>(layout.ranks()) + 1) {
  words_[0] = random_word();
  RankBlock& block = layout_.block(rank_);
  block.pid.store(getpid());
  block.word = words_[0];
  block.words_at.store(reinterpret_cast<std::uint64_t>(words_.data()));
  prctl(PR_SET_PTRACER, static_cast<unsigned long>(getppid()), 0, 0, 0);  // fails where there is no Yama, and need not succeed
}

void ProcessMemory::prove() {
  for (int peer = 0; peer < layout_.ranks(); ++peer)
    if (peer != rank_) prove(peer);
}

void ProcessMemory::prove(int peer) {
  const RankBlock& block = layout_.block(peer);
  const std::uint64_t at = block.words_at.load(), mine = at + (static_cast<std::uint64_t>(rank_) + 1) * sizeof(ProbeWord);
  const auto insist = [&](int error, const char* what) {
    if (error != 0) throw Error("it may not {} memory of rank {} (pid {}): {}", what, peer, block.pid.load(), std::strerror(error));
  };
  ProbeWord seen{};
  insist(read(peer, &seen, at, sizeof seen), "read");
  if (seen != block.word) throw Error("process {} is not rank {} here: they count their processes apart", block.pid.load(), peer);
  const ProbeWord sent = random_word();
  insist(write(peer, mine, &sent, sizeof sent), "write");
  insist(read(peer, &seen, mine, sizeof seen), "read");
  if (seen != sent) throw Error("what it writes into memory of rank {} (pid {}) does not stay there", peer, block.pid.load());
}

int ProcessMemory::read(int peer, void* to, std::uint64_t from, std::size_t bytes) {
  return copy_all(process_vm_readv, layout_.block(peer).pid.load(), static_cast<std::byte*>(to), from, bytes);
}

int ProcessMemory::write(int peer, std::uint64_t to, const void* from, std::size_t bytes) {
  return copy_all(process_vm_writev, layout_.block(peer).pid.load(), static_cast<std::byte*>(const_cast<void*>(from)), to, bytes);
}

}  // namespace lockstep::ring
