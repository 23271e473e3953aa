// The variables that Hydra, the mpiexec of MPICH and of Intel MPI, sets for each of its processes, read into a job's
// environment.
//
// PMI_RANK, PMI_SIZE; MPI_LOCALRANKID, MPI_LOCALNRANKS; PMI_FD, a socket to the proxy that has started this machine's
// ranks.
#pragma once

#include "src/comm/rendezvous/environment_reader.h"

namespace lockstep::hydra {

// This process is one of Hydra's. Inside of a Slurm allocation srun starts the proxies, whose SLURM_PROCID the ranks
// inherit.
bool is_rank(const EnvironmentReader& reader);

// Fills in kind, place, and host and port or the job's id. Throws InvalidArgument that names the variable.
void read_job(const EnvironmentReader& reader, JobEnvironment& job);

}  // namespace lockstep::hydra
