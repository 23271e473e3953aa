// Reads a job's environment from the variables that Hydra, the mpiexec of MPICH and Intel MPI, sets for each of its
// processes.
//
// PMI_RANK, PMI_SIZE; MPI_LOCALRANKID, MPI_LOCALNRANKS; PMI_FD, a socket to the proxy that has started this machine's
// ranks.
#pragma once

#include "src/comm/rendezvous/environment_reader.h"

namespace lockstep::hydra {

// Whether this process is one of Hydra's. In a Slurm allocation srun starts the proxies, and the ranks inherit their
// SLURM_PROCID.
bool is_rank(const EnvironmentReader& reader);

// Fills in kind, place, and either host and port or the job's id. Throws InvalidArgument that names the variable.
void read_job(const EnvironmentReader& reader, JobEnvironment& job);

}  // namespace lockstep::hydra
