// Options of a process group and of its calls.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "lockstep/comm/operation.h"
#include "lockstep/core/device.h"

#pragma GCC visibility push(default)
namespace lockstep {

struct ProcessGroupOptions {
  // The backend for host memory; "": LOCKSTEP_BACKEND, else "host", which PyTorch's name "gloo" means, too. A group
  // whose device is a GPU also has `nccl`, for the GPU's memory. "nccl" requires a GPU, and uses "host" for host
  // memory.
  std::string backend = {};
  // "": LOCKSTEP_TRANSPORT, else "auto": shared memory where a memfd can be passed between the ranks, else TCP.
  std::string transport = {};
  // The default deadline of a call, LOCKSTEP_TIMEOUT_S, else 5 minutes. All timeouts must be > 0.
  std::optional<std::chrono::milliseconds> timeout = {};
  // The longest time without a heartbeat, after which a rank is lost: its process is stopped, or its machine or network
  // is down. (A rank that computes still sends heartbeats.) LOCKSTEP_STALL_TIMEOUT_S, else 30 s; the same on all ranks.
  std::optional<std::chrono::milliseconds> stall_timeout = {};
  // The deadline of the rendezvous; LOCKSTEP_STORE_TIMEOUT_S, else 60 s.
  std::optional<std::chrono::milliseconds> store_timeout = {};
  Device* device = nullptr;  // this rank's; null: local_device()
};

// Options of a single call.
struct CallOptions {
  Purpose purpose = {};
  std::chrono::milliseconds timeout{0};  // 0: the group's timeout
  DeviceKind device = DeviceKind::kCpu;  // where the data is; kCuda: on the group's device. Selects the backend.
  double factor = 1;                     // ReduceOp::kPremulSum: the factor of this rank's values
};

}  // namespace lockstep
#pragma GCC visibility pop
