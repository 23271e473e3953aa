// Ordinary memory of the machine's other ranks, read and written by its addresses there.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/comm/ring/control_block.h"

namespace lockstep::ring {

// Both calls return 0 when all bytes were copied, else the errno that says why not all were: EFAULT (the peer has no such
// memory), EPERM (it may not be touched), ESRCH (the peer is gone).
class PeerMemory {
 public:
  virtual ~PeerMemory() = default;
  virtual int read(int peer, void* to, std::uint64_t from, std::size_t bytes) = 0;
  virtual int write(int peer, std::uint64_t to, const void* from, std::size_t bytes) = 0;
};

// Ranks that are threads: plain copies, which ThreadSanitizer watches.
class ThreadMemory : public PeerMemory {
 public:
  int read(int peer, void* to, std::uint64_t from, std::size_t bytes) override;
  int write(int peer, std::uint64_t to, const void* from, std::size_t bytes) override;
};

// Ranks that are processes: process_vm_readv and process_vm_writev.
//
// Whether the system allows them (Yama, seccomp and other users' processes may stand against it) and whether a number is the
// peer's process here (another pid namespace counts otherwise) is not guessed but proven: every rank shows a random word at
// an address, and only who reads it there goes on to write.
class ProcessMemory : public PeerMemory {
 public:
  // Shows the word in this rank's block. Where Yama lets processes be touched by their ancestors only, names the parent as
  // one that may: that covers its descendants, the ranks that the same launcher has started.
  ProcessMemory(const ControlLayout& layout, int rank);
  // When all ranks have shown theirs: reads every peer's word, and writes one of its own and reads that back. Throws Error
  // that names the peer and what was refused.
  void prove();

  int read(int peer, void* to, std::uint64_t from, std::size_t bytes) override;
  int write(int peer, std::uint64_t to, const void* from, std::size_t bytes) override;

 private:
  void prove(int peer);

  ControlLayout layout_;
  int rank_;
  std::vector<ProbeWord> words_;  // this rank's own, then what the peers have written, by rank
};

}  // namespace lockstep::ring
