// The control connections of a group: what the watches of ranks that share no memory tell each other.
//
// Frames of one size, some followed by a text. Nothing here blocks, except that ranks greet each other at the beginning: what a
// peer does not take at once is kept and goes later.
#pragma once

#include <poll.h>

#include <cstdint>
#include <string>
#include <vector>

#include "src/comm/ring/tcp_mesh.h"
#include "src/comm/ring/verdict.h"

namespace lockstep::ring {

// What came from a peer.
struct WatchNews {
  enum Kind : std::uint32_t { kHello = 0x68656c31, kProposal = 0x70726f31, kVerdict = 0x76657231, kGoodbye = 0x62796532, kClosed = 0 };
  Kind kind = kClosed;  // kClosed is never sent: the connection has ended
  int from = 0;
  Verdict verdict = {};
  int error = 0;  // kClosed: errno of the connection, 0 when the peer closed it
};

class WatchLinks {
 public:
  // Collective: greets all peers. Throws RendezvousError that names the rank that did not answer.
  WatchLinks(int rank, std::vector<TcpPeer> peers, Deadline deadline);

  // Adds what to poll for; receive() and flush() find out themselves what is ready.
  void add_to(std::vector<pollfd>& polls) const;
  void receive(std::vector<WatchNews>& news);
  void flush();

  void tell(int peer, WatchNews::Kind kind, const Verdict& verdict = {});
  void tell_all(WatchNews::Kind kind, const Verdict& verdict = {});

  const std::string& host_of(int rank) const { return links_[static_cast<std::size_t>(rank)].host; }
  std::int32_t pid_of(int rank) const { return links_[static_cast<std::size_t>(rank)].pid; }

 private:
  struct Frame {
    std::uint32_t kind = 0;
    std::uint32_t text_bytes = 0;
    std::uint32_t verdict = 0;
    std::uint32_t reserved = 0;
  };
  static constexpr std::size_t kLongestText = 4096;
  struct Link {
    Fd socket;  // none: this rank itself, or it has ended
    std::int32_t pid = 0;
    std::string host;
    std::string inbox, outbox;  // frames that are not complete, or not gone
  };
  void greet(Deadline deadline);
  static std::string encode(WatchNews::Kind kind, const Verdict& verdict);
  void receive_from(int peer, std::vector<WatchNews>& news);
  // False: that is no frame of this protocol.
  static bool take_frames(int peer, std::string& inbox, std::vector<WatchNews>& news);
  void flush(Link& link);

  int rank_;
  std::vector<Link> links_;
};

std::string host_name();

}  // namespace lockstep::ring
