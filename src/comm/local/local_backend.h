// The backend of a world of one: every collective is the identity.
#pragma once

#include <memory>

#include "lockstep/comm/backend.h"

namespace lockstep {

std::unique_ptr<Backend> make_local_backend();
// The same for the memory of a GPU.
std::unique_ptr<Backend> make_local_backend(Device& device);

}  // namespace lockstep
