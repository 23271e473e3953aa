// Direct copies between the GPUs of one process: without them the driver sends each copy through the host's memory.
#pragma once

#include <vector>

namespace lockstep::cuda {

// CUDA's calls, apart so that the plan is tested without a GPU.
class PeerCalls {
 public:
  virtual ~PeerCalls() = default;
  // Lets `device` address memory of `peer` (cudaDeviceEnablePeerAccess); false: the machine does not allow it.
  virtual bool enable(int device, int peer) = 0;
  virtual void open_pool(int owner, int peer) = 0;  // cudaMemPoolSetAccess: the owner's memory pool, for `peer`
};

// Lets `fresh` and each of `others`, the GPUs that this process uses already, address each other's memory where the
// machine allows it. Returns those with which it does not in both directions; copies to and from them go through the
// host.
std::vector<int> connect_peers(PeerCalls& calls, int fresh, const std::vector<int>& others);

}  // namespace lockstep::cuda
