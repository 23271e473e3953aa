// The nccl backend for tests whose data is in host memory: a call's input is copied to the rank's device, and its
// result is copied back by the thread that waits for it. Memory that the backend allocated is also host memory, with a
// copy on the device that NCCL has registered.
#pragma once

#include <memory>

#include "lockstep/comm/backend.h"
#include "lockstep/comm/backend_context.h"
#include "tests/support/recording_device.h"

namespace lockstep::testing {

// Collective, like make_nccl_backend(). The device outlives the backend, its memory and its Works.
std::unique_ptr<Backend> make_nccl_over_stub(BackendContext context, RecordingDevice& device);
// The same with this process's NCCL, on a GPU; throws InvalidArgument if there is none.
std::unique_ptr<Backend> make_nccl_on_gpu(BackendContext context, Device& device);

}  // namespace lockstep::testing
