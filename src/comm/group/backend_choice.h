// Chooses a group's backends by name and makes them. Implemented in src/comm/backends.cpp, the only file that knows all
// backends.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "lockstep/comm/backend.h"
#include "lockstep/comm/backend_context.h"

namespace lockstep {

using Backends = std::array<std::unique_ptr<Backend>, 2>;  // by DeviceKind; the CPU's always exists

struct BackendChoice {
  std::string host, gpu;  // gpu "": the group has no GPU backend
};

// `asked` is ProcessGroupOptions::backend; "": LOCKSTEP_BACKEND, else the default for this world. Throws the errors of
// check_backend().
BackendChoice choose_backends(const Place& place, const std::string& asked, const Device& device);

// Collective. The context's device must be set.
Backends make_backends(const BackendChoice& choice, BackendContext context);

}  // namespace lockstep
