// The CPU backend: shared memory within a machine, TCP between machines, and a communication thread for asynchronous
// calls.
#pragma once

#include <memory>

#include "lockstep/comm/backend.h"
#include "lockstep/comm/backend_context.h"
#include "src/comm/call/transport.h"

namespace lockstep {

// Collective over the ranks that meet in the context's store. Throws InvalidArgument for an unknown transport, and
// Error with rank and reason if "shm" is requested and not available to all ranks.
std::unique_ptr<Backend> make_host_backend(const BackendContext& context);

// Wraps an existing transport, for ranks that are threads.
std::unique_ptr<Backend> make_host_backend(const Place& place, std::unique_ptr<Transport> transport,
                                           std::chrono::milliseconds timeout);

}  // namespace lockstep
