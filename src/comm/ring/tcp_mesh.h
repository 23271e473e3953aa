// A TCP connection to every peer, both sides having proved the job's token.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/comm/backend.h"
#include "src/comm/socket.h"

namespace lockstep::ring {

struct TcpPeer {
  Fd socket;  // non-blocking, without Nagle's delay; none for this rank itself
  std::int32_t pid = 0;
};

// Collective; `name` tells the meshes of one group apart in the store. By rank. Throws RendezvousError that names the rank and address, or
// the ranks that did not come.
std::vector<TcpPeer> connect_mesh(const BackendContext& context, const std::string& name);

}  // namespace lockstep::ring
