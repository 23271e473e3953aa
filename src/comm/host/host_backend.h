// The CPU backend: shared memory inside a machine, TCP between machines, and a communication thread for what is
// asynchronous.
#pragma once

#include <memory>

#include "lockstep/comm/backend.h"
#include "lockstep/comm/backend_context.h"
#include "src/comm/call/transport.h"

namespace lockstep {

// Collective over the ranks that meet in the context's store. Throws InvalidArgument for an unknown transport, Error
// (rank and reason) when "shm" is asked for and some rank cannot have it.
std::unique_ptr<Backend> make_host_backend(const BackendContext& context);

// Around a transport made by hand: for ranks that are threads.
std::unique_ptr<Backend> make_host_backend(const Place& place, std::unique_ptr<Transport> transport,
                                           std::chrono::milliseconds timeout);

}  // namespace lockstep
