// The CPU backend: shared memory inside a machine, TCP between machines, and a communication thread for what is asynchronous.
#pragma once

#include <memory>

#include "lockstep/comm/backend.h"
#include "src/comm/ring/transport.h"

namespace lockstep {

// Collective over the ranks that meet in the context's store. Throws InvalidArgument for an unknown transport, Error
// (rank and reason) when "shm" is asked for and some rank cannot have it.
std::unique_ptr<Backend> make_ring_backend(const BackendContext& context);

// Around a transport made by hand: for ranks that are threads.
std::unique_ptr<Backend> make_ring_backend(const Place& place, std::unique_ptr<ring::Transport> transport,
                                           std::chrono::milliseconds timeout);

}  // namespace lockstep
