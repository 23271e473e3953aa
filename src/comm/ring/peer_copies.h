// Copies between this rank's memory and its peers', in a call whose ranks have said where their buffers lie.
//
// While peers reach into a rank's memory it must not give that memory back. A call that succeeds ends with a round; one that
// fails waits until no peer is reaching any more: whoever reaches says so in its block first, and asks for the verdict after
// that and before every copy. Only a process that is stopped or killed in the middle of a copy keeps the others waiting, for
// half a second.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/comm/ring/peer_memory.h"
#include "src/comm/ring/rounds.h"

namespace lockstep::ring {

class PeerCopies {
 public:
  // `memory` may be null: then no copies are possible.
  PeerCopies(const ControlLayout& layout, int rank, PeerMemory* memory, Rounds& rounds, GroupWatch& watch);

  bool possible() const { return memory_ != nullptr; }
  // Where the peer's buffer of this call begins, in its own addresses.
  void set_buffer(int peer, std::uint64_t address) { buffers_[static_cast<std::size_t>(peer)] = address; }

  // While it lives, this rank reaches into its peers' memory. Both calls throw the verdict of a group that is over, and
  // make one of a copy that fails; `offset` counts from the beginning of the peer's buffer.
  class Reaching {
   public:
    explicit Reaching(PeerCopies& copies) : copies_(copies) { copies_.reaching_.store(1); }
    ~Reaching() { copies_.reaching_.store(0); }
    Reaching(const Reaching&) = delete;
    Reaching& operator=(const Reaching&) = delete;

    void read(int peer, void* to, std::size_t offset, std::size_t bytes);
    void write(int peer, std::size_t offset, const void* from, std::size_t bytes);

   private:
    PeerCopies& copies_;
  };

  void await_no_peer_reaches() noexcept;

 private:
  [[noreturn]] void fail(const char* what, int peer, std::size_t offset, std::size_t bytes, int error);

  ControlLayout layout_;
  int rank_;
  PeerMemory* memory_;
  Rounds& rounds_;
  GroupWatch& watch_;
  std::atomic<std::uint32_t>& reaching_;  // in this rank's block
  std::vector<std::uint64_t> buffers_;    // by rank
};

}  // namespace lockstep::ring
