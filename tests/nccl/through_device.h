// The nccl backend above the stub, for tests whose data lies in plain memory: what a call reads is copied to the rank's device, what it
// writes is copied back. Memory that the backend allocated is used as it is.
#pragma once

#include <memory>

#include "lockstep/comm/backend.h"
#include "tests/support/recording_device.h"

namespace lockstep::testing {

// Collective, as make_nccl_backend(). The device outlives the backend, its memory and its Works.
std::unique_ptr<Backend> make_nccl_over_stub(BackendContext context, RecordingDevice& device);

}  // namespace lockstep::testing
