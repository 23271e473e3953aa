// Which backends a group uses, by name, and how they are made. src/comm/backends.cpp, the one file that knows all
// backends, implements it.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "lockstep/comm/backend.h"
#include "lockstep/comm/backend_context.h"

namespace lockstep {

using Backends = std::array<std::unique_ptr<Backend>, 2>;  // by DeviceKind; there is one for the CPU

struct BackendChoice {
  std::string host, gpu;  // gpu "": the group has none
};

// `asked`: ProcessGroupOptions::backend; "": LOCKSTEP_BACKEND, else the default of such a world. Throws what
// check_backend() throws.
BackendChoice choose_backends(const Place& place, const std::string& asked, const Device& device);

// Collective. The context's device is set.
Backends make_backends(const BackendChoice& choice, BackendContext context);

}  // namespace lockstep
