// The memory of Backend::allocate() where there is nothing to register.
#pragma once

#include <cstddef>

#include "lockstep/core/buffer.h"

namespace lockstep {

// Zeroed, aligned to a page; from the CPU device's pool.
Buffer allocate_unregistered(std::size_t bytes);

}  // namespace lockstep
