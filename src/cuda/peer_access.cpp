#include "src/cuda/peer_access.h"

#include <utility>

namespace lockstep::cuda {

std::vector<int> connect_peers(PeerCalls& calls, int fresh, const std::vector<int>& others) {
  std::vector<int> apart;
  for (const int other : others) {
    bool is_connected = true;
    for (const auto& [device, peer] : {std::pair(fresh, other), std::pair(other, fresh)}) {
      if (calls.enable(device, peer))
        calls.open_pool(peer, device);
      else
        is_connected = false;
    }
    if (!is_connected) apart.push_back(other);
  }
  return apart;
}

}  // namespace lockstep::cuda
