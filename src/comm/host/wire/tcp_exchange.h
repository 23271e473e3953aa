// Moves a list of pieces to and from all peers at once: full duplex, whatever the sizes of the socket buffers.
//
// The caller plans the pieces, then runs the plan. Pieces to one peer leave, and pieces from one peer arrive, in the
// order in which they were added; a piece that one side sends is one piece for the receiver. A header in front
// identifies the sender's operation; the run compares it before it writes any data to the caller's memory.
//
// A peer with several sockets gets the header and small pieces on the first, and a share of each large piece on every
// one. On the wire each piece ends on a multiple of 64 bytes: the kernel continues copying at the end of the previous
// piece, at half the speed if that address is odd.
// half the speed if that is an odd address.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/comm/operation.h"
#include "src/comm/host/wire/piece_queue.h"
#include "src/comm/host/wire/tcp_mesh.h"
#include "src/comm/net/backoff.h"

namespace lockstep::host {

struct FrameHeader {
  enum Kind : std::uint32_t { kOperation = 0x6f726b6c, kGoodbye = 0x676f6f64 };
  std::uint32_t kind = kOperation;
  std::uint32_t reserved = 0;
  Signature signature;
  PassState pass;
  char purpose[24] = {};  // the beginning of Purpose::name
};
static_assert(sizeof(FrameHeader) == 128);

class TcpExchange {
 public:
  // The errors that end a run; run() calls these functions, which all throw.
  struct Events {
    std::function<void(int peer)> lost;                                 // closed its connection without a goodbye
    std::function<void(int peer)> left;                                 // sent a goodbye
    std::function<void(int peer, const FrameHeader& theirs)> mismatch;  // is in another operation
    std::function<void(const std::vector<int>& peers, bool arrived)>
        late;  // past the deadline; `arrived`: the peers have arrived but not finished
    // Time for which this process was stopped since the operation began, or since the last call; it does not count as
    // delay.
    std::function<std::chrono::nanoseconds()> slept;
  };

  TcpExchange(int rank, std::vector<TcpPeer>& peers, Events events);

  // Begins a new operation; its header is sent before all pieces.
  void begin(const FrameHeader& header);
  void send(int peer, const std::byte* data, std::size_t bytes);
  void receive(int peer, std::byte* data, std::size_t bytes);
  // Pieces that are planned after this call are for later: the next run() moves them along, but does not wait for them.
  void mark();
  // Returns when all pieces planned before the mark (without a mark, all pieces) are done. The rest stays planned.
  void run(std::chrono::steady_clock::time_point deadline);

  std::uint64_t payload_bytes_sent() const { return payload_sent_; }

 private:
  struct Lane {  // one socket
    int socket;
    PieceQueue out, in;
  };
  struct Channel {
    std::vector<Lane> lanes;
    FrameHeader theirs;
    bool header_seen = false;
    bool cannot_send = false;  // data from the peer that is still unread will tell why
    bool receives() const;
    bool sends() const;
    bool is_due() const;  // something before the mark is not done
    bool may_receive(const Lane& lane) const { return !lane.in.idle() && (header_seen || &lane == &lanes[0]); }
  };

  void add(Channel& to, PieceQueue Lane::*queue, std::byte* data, std::size_t bytes, std::byte* padding);
  bool move_some();
  bool receive_some(int peer, Lane& lane);
  bool send_some(int peer, Lane& lane);
  ssize_t receive_once(int peer, Lane& lane);
  void check_header(int peer);
  void wait(std::chrono::steady_clock::time_point& deadline);
  void add_polls(int peer);
  void report_late();
  bool all_due_done() const;
  Channel& channel(int peer) { return channels_[static_cast<std::size_t>(peer)]; }
  int ranks() const { return static_cast<int>(channels_.size()); }

  Events events_;
  YieldingWait yields_;
  FrameHeader header_;
  std::vector<Channel> channels_;
  std::vector<pollfd> polls_;
  std::vector<std::byte> inbox_, padding_;
  bool is_marked_ = false;
  std::uint64_t payload_sent_ = 0;
};

}  // namespace lockstep::host
