// A TCP connection to every peer, or several, both sides having proved the job's token.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/comm/backend_context.h"
#include "src/comm/net/socket.h"
#include "src/core/process/process_fd.h"

namespace lockstep::host {

struct TcpPeer {
  ProcessFd socket;  // non-blocking, without Nagle's delay; none for this rank itself
  std::int32_t pid = 0;
  std::vector<ProcessFd> more = {};  // the second socket and so on
};

// LOCKSTEP_SOCKETS_PER_PEER, else two: on loopback 4 to 64 MiB take 10 to 25 % less time than over one, and less than 1
// MiB as much. With many peers there are streams enough: one.
int wanted_sockets_per_peer(int ranks);

// Collective; `name` tells the meshes of one group apart in the store. By rank. Of `sockets`, rank 0's number counts.
// All listen on the context's advertised address alone and connect from it. Throws RendezvousError that names the rank
// and address, or the ranks that did not come.
std::vector<TcpPeer> connect_mesh(const BackendContext& context, const std::string& name, int sockets = 1);

// Wakes every thread that waits on one of these connections, on both sides, for good.
void shut_down(const std::vector<TcpPeer>& peers) noexcept;

// The address that a rank publishes, as text. Parsing throws Error when it is damaged.
struct MeshAddress {
  std::string host;  // numeric, without a scope
  std::uint16_t port = 0;
  int sockets = 1;

  bool operator==(const MeshAddress&) const = default;
};
std::string to_text(const MeshAddress& address);
MeshAddress parse_mesh_address(const std::string& text);

}  // namespace lockstep::host
