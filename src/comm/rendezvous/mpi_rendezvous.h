// How ranks that mpirun has started on several machines meet: MPI carries rank 0's address and the token.
#pragma once

#include <chrono>

#include "lockstep/comm/bootstrap.h"

namespace lockstep {

// Throws InvalidArgument where the build has no MPI, RendezvousError.
Rendezvous rendezvous_by_mpi(const JobEnvironment& job, std::chrono::milliseconds timeout);

}  // namespace lockstep
