// The memory of Backend::allocate() for backends that need no registration.
#pragma once

#include <cstddef>

#include "lockstep/core/buffer.h"

namespace lockstep {

// Zeroed and page-aligned; from the CPU device's pool.
Buffer allocate_unregistered(std::size_t bytes);

}  // namespace lockstep
