// One or several TCP connections to every peer; both sides have proved that they know the job's token.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/comm/backend_context.h"
#include "src/comm/net/socket.h"
#include "src/core/process/process_fd.h"

namespace lockstep::host {

struct TcpPeer {
  ProcessFd socket;  // non-blocking, with TCP_NODELAY; none for this rank itself
  std::int32_t pid = 0;
  std::vector<ProcessFd> more = {};  // the second socket and so on
};

// LOCKSTEP_SOCKETS_PER_PEER, else two: on loopback 4 to 64 MiB take 10 to 25 % less time than over one socket, and less
// than 1 MiB takes the same time. With many peers there are enough streams with one each.
int wanted_sockets_per_peer(int ranks);

// Collective; returns the peers by rank. `name` distinguishes the meshes of one group in the store. Rank 0's `sockets`
// counts. All ranks listen only on the context's advertised address, and connect from it. Throws RendezvousError that
// names the rank and address, or the missing ranks.
std::vector<TcpPeer> connect_mesh(const BackendContext& context, const std::string& name, int sockets = 1);

// Permanently wakes every thread that waits on one of these connections, on both sides.
void shut_down(const std::vector<TcpPeer>& peers) noexcept;

// The address that a rank publishes, as text. Parsing throws Error if the text is damaged.
struct MeshAddress {
  std::string host;  // numeric, without a scope
  std::uint16_t port = 0;
  int sockets = 1;

  bool operator==(const MeshAddress&) const = default;
};
std::string to_text(const MeshAddress& address);
MeshAddress parse_mesh_address(const std::string& text);

}  // namespace lockstep::host
