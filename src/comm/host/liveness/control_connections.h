// The control connections of a group, between the failure detectors of ranks that share no memory.
//
// Messages are frames of one size, some followed by a text. Nothing here blocks, except the ranks' greeting at the
// beginning: data that a peer does not accept at once is kept and sent later.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "src/comm/call/group_error.h"
#include "src/comm/host/machine/activity.h"
#include "src/comm/host/wire/tcp_mesh.h"

namespace lockstep::host {

// A heartbeat: its sender's last activity, and since when.
struct Heartbeat {
  Activity activity;
  std::chrono::milliseconds age{0};
};

// A message from a peer.
struct ControlMessage {
  enum Kind : std::uint32_t {
    kHello = 0x68656c31,
    kProposal = 0x70726f31,
    kGroupError = 0x76657231,
    kGoodbye = 0x62796532,
    kHeartbeat = 0x62656174,
    kClosed = 0
  };
  Kind kind = kClosed;  // kClosed is never sent: the connection has ended
  int from = 0;
  GroupError group_error = {};
  Heartbeat beat = {};
  int error = 0;  // kClosed: errno of the connection; 0: the peer closed it
};

class ControlConnections {
 public:
  // Collective: greets all peers. Throws RendezvousError that names the rank that did not answer. If a peer's machine
  // acknowledges nothing for `lost_after`, its connection is closed with ETIMEDOUT.
  ControlConnections(int rank, std::vector<TcpPeer> peers, std::chrono::milliseconds lost_after, Deadline deadline);
  ~ControlConnections();
  ControlConnections(const ControlConnections&) = delete;
  ControlConnections& operator=(const ControlConnections&) = delete;

  // Adds the descriptors to poll; receive() and flush() find the ready ones themselves.
  void add_to(std::vector<pollfd>& polls) const;
  void receive(std::vector<ControlMessage>& news);
  void flush();

  void tell(int peer, ControlMessage::Kind kind, const GroupError& group_error = {});
  void tell_all(ControlMessage::Kind kind, const GroupError& group_error = {});
  // Skips a peer that accepts nothing, since its next heartbeat has the same content.
  void beat(int peer, const Heartbeat& beat);

  const std::string& host_of(int rank) const { return links_[static_cast<std::size_t>(rank)].host; }
  std::int32_t pid_of(int rank) const { return links_[static_cast<std::size_t>(rank)].pid; }

 private:
  struct Frame {
    std::uint32_t kind = 0;
    std::uint32_t text_bytes = 0;
    std::uint32_t group_error = 0;
    std::uint32_t age_ms = 0;
    Activity activity;
  };
  static_assert(std::is_trivially_copyable_v<Frame>);
  static constexpr std::size_t kLongestText = 4096;
  // Urgent messages are padded to this length, and a connection is ready when that many bytes have arrived: so
  // heartbeats do not wake the thread.
  static constexpr std::size_t kUrgentBytes = 1024;
  struct Link {
    ProcessFd socket;  // none: this rank itself, or the connection has ended
    std::int32_t pid = 0;
    std::string host;
    std::string inbox, outbox;  // incomplete frames, frames that are not sent yet
  };
  void greet(Deadline deadline);
  static std::string encode(ControlMessage::Kind kind, const GroupError& group_error);
  void receive_from(int peer, std::vector<ControlMessage>& news);
  // Returns false for data that is not a frame of this protocol.
  static bool take_frames(int peer, std::string& inbox, std::vector<ControlMessage>& news);
  void flush(Link& link);

  int rank_;
  std::vector<Link> links_;
};

}  // namespace lockstep::host
