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
  // Of host memory; "": LOCKSTEP_BACKEND, else "host". A group whose device is a GPU has `nccl` beside it for the GPU's
  // memory; "nccl" asks for a GPU, and takes "host" for host memory.
  std::string backend = {};
  std::string transport =
      {};  // "": LOCKSTEP_TRANSPORT, else "auto": shared memory when handing over a memfd works, else TCP
  std::optional<std::chrono::milliseconds> timeout =
      {};  // a collective's deadline; LOCKSTEP_TIMEOUT_S, else 5 min; all are > 0
  // How long a rank may send no heartbeat: its process is stopped, its machine or the network gone. (A rank that
  // computes sends them.) LOCKSTEP_STALL_TIMEOUT_S, else 30 s; the same on all ranks.
  std::optional<std::chrono::milliseconds> stall_timeout = {};
  std::optional<std::chrono::milliseconds> store_timeout = {};  // the rendezvous'; LOCKSTEP_STORE_TIMEOUT_S, else 60 s
  Device* device = nullptr;                                     // this rank's; null: local_device()
};

// Options of a single call, beside its data.
struct CallOptions {
  Purpose purpose = {};
  std::chrono::milliseconds timeout{0};  // 0: the group's
  DeviceKind device = DeviceKind::kCpu;  // where the pointers live, kCuda: on the group's device; chooses the backend
  double factor = 1;                     // ReduceOp::kPremulSum: what this rank's values are multiplied with
};

}  // namespace lockstep
#pragma GCC visibility pop
