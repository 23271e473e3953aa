// The rendezvous of ranks that mpirun has started on several machines: MPI transfers rank 0's address and the token.
#pragma once

#include <chrono>

#include "lockstep/comm/bootstrap.h"

namespace lockstep {

// Throws InvalidArgument if this build has no MPI, and RendezvousError.
Rendezvous rendezvous_by_mpi(const JobEnvironment& job, std::chrono::milliseconds timeout);

}  // namespace lockstep
