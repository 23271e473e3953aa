// Moves a list of pieces to and from all peers at once: full duplex, whatever the sizes of the socket buffers.
//
// First the plan, then the run: pieces to one peer leave in the order in which they were added, pieces from one arrive
// so. A header in front says which operation the sender is in; the run compares it before it takes any data.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/comm/operation.h"
#include "src/comm/ring/tcp_mesh.h"

namespace lockstep::ring {

struct FrameHeader {
  enum Kind : std::uint32_t { kOperation = 0x6f726b6c, kGoodbye = 0x676f6f64 };
  std::uint32_t kind = kOperation;
  std::uint32_t reserved = 0;
  Signature signature;
  char purpose[16] = {};  // begins what Purpose::name says
};
static_assert(sizeof(FrameHeader) == 64);

class TcpExchange {
 public:
  // Called by run() when something ends it; all of them throw.
  struct Events {
    std::function<void(int peer)> lost;                                     // closed without a goodbye
    std::function<void(int peer)> left;                                     // said goodbye
    std::function<void(int peer, const FrameHeader& theirs)> mismatch;      // is in another operation
    std::function<void(const std::vector<int>& peers, bool arrived)> late;  // the deadline; `arrived`: but have not finished
    // How long this process was stopped since the operation began, or since the last answer: nobody is late for that.
    std::function<std::chrono::nanoseconds()> slept;
  };

  TcpExchange(int rank, std::vector<TcpPeer>& peers, Events events);

  // A new operation: its header goes in front of everything.
  void begin(const FrameHeader& header);
  void send(int peer, const std::byte* data, std::size_t bytes);
  void receive(int peer, std::byte* data, std::size_t bytes);
  // Returns when everything planned is done; the plan is empty then.
  void run(std::chrono::steady_clock::time_point deadline);

  std::uint64_t payload_bytes_sent() const { return payload_sent_; }

 private:
  struct Piece {
    std::byte* data;
    std::size_t bytes;
    bool is_header;
  };
  struct Queue {
    std::vector<Piece> pieces;
    std::size_t next = 0;  // piece under way
    std::size_t done = 0;  // bytes of it
    bool idle() const { return next == pieces.size(); }
  };
  struct Channel {
    Queue out, in;
    FrameHeader theirs;
    bool header_seen = false;
    bool cannot_send = false;  // what it still has to say will tell why
    bool watched = true;       // for a hang-up, once its transfers are done
  };

  bool receive_some(int peer);
  bool send_some(int peer);
  void check_header(int peer);
  void wait(std::chrono::steady_clock::time_point& deadline);
  void look_at_finished(int peer);
  void report_late();
  bool all_idle() const;
  Channel& channel(int peer) { return channels_[static_cast<std::size_t>(peer)]; }
  int socket_of(int peer) const { return peers_[static_cast<std::size_t>(peer)].socket.get(); }

  int rank_;
  std::vector<TcpPeer>& peers_;
  Events events_;
  FrameHeader header_;
  std::vector<Channel> channels_;
  std::vector<pollfd> polls_;
  std::uint64_t payload_sent_ = 0;
};

}  // namespace lockstep::ring
