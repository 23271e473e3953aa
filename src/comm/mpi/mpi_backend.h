// Open MPI's non-blocking collectives, for clusters with a network that MPI supports (InfiniBand, Omni-Path,
// Slingshot). Each rank is a process that mpirun (or srun with PMIx) has started.
//
// Threads: MPI is initialised with MPI_THREAD_SERIALIZED, and a process-wide lock serializes its calls. Asynchronous
// calls run on the communication thread, in order. A waiting thread progresses MPI with MPI_Test; without a wait
// nothing moves. Every call is preceded by a comparison of signatures: one small MPI_Iallreduce.
//
// Limits due to MPI:
//   abort       Wakes this rank only; the others wait until their deadline, or until mpirun ends the job.
//   lost peers  Are not named: mpirun ends the job when a process dies; a missing rank causes a TimeoutError.
//   waiting     Polls: yields for a millisecond, then wakes up to a thousand times a second.
//   sums        Use MPI's order: the same bits on all ranks and in repeats, but not those of `host`. float16 and
//               bfloat16 are sent as float32.
//   messages    Are sent in chunks of 64 KiB, copied at both ends, so that types are compared and no send blocks for
//               lack of a receive.
//   counts      Above 2^31 - 1 elements: reductions and broadcasts are divided into pieces, other calls are refused.
// After a deadline or an abort this process makes no MPI calls, for any group: the abandoned call is still under way,
// and MPI would write to buffers that belong to the caller again. After any error the group is unusable, and the
// process skips MPI_Finalize when it ends, as it does if its exit code is not 0: so it does not hang there, and mpirun
// ends the other ranks.
#pragma once

#include <climits>
#include <memory>

#include "lockstep/comm/backend.h"
#include "lockstep/comm/backend_context.h"

namespace lockstep {

// Throws InvalidArgument if this is one of several ranks and MPI did not start it. Does not initialise MPI.
void check_started_by_mpi(const Place& place);

// Collective over the ranks that meet in the context's store. Throws InvalidArgument if MPI did not start these ranks.
// One MPI call gets at most `most` elements; tests use a small value.
std::unique_ptr<Backend> make_mpi_backend(const BackendContext& context, std::size_t most = INT_MAX);

}  // namespace lockstep
