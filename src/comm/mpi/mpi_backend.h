// Open MPI's non-blocking collectives, for clusters whose network MPI knows (InfiniBand, Omni-Path, Slingshot). One
// rank is one process that mpirun (or srun with PMIx) has started.
//
// Threads: MPI is initialised with MPI_THREAD_SERIALIZED; a lock of the process keeps its calls apart. Asynchronous
// calls run on the communication thread, in order. A waiting thread progresses MPI, by MPI_Test: nothing moves between
// two waits. Every call is preceded by a comparison of signatures: one small MPI_Iallreduce.
//
// Limits that come from MPI:
//   abort      wakes this rank only; the others wait until their deadline, or until mpirun ends the job.
//   lost peers are not named: mpirun ends the job when a process dies; a rank that stays away is a TimeoutError without
//   name. waiting    is polling: yields for a millisecond, then up to a thousand wake-ups a second. order      of sums
//   is MPI's: the same bits on all ranks and in repeats, others than `host` gives. float16 and bfloat16
//              travel as float32.
//   messages   go in chunks of 64 KiB, copied at both ends, so that types are compared and no send blocks for want of a
//   receive. counts     above 2^31 - 1 elements: reductions and broadcasts are cut into pieces, the others refused.
// After a deadline or an abort this process calls MPI no more, for any group: what was given up is still under way, and
// MPI would write to buffers that are the caller's again. After any error the group is unusable, and MPI_Finalize is
// left out when the process ends, as it is when the exit code is not 0: nothing hangs there, and mpirun ends the other
// ranks.
#pragma once

#include <climits>
#include <memory>

#include "lockstep/comm/backend.h"
#include "lockstep/comm/backend_context.h"

namespace lockstep {

// Throws InvalidArgument for one of several ranks that MPI did not start. Does not initialise MPI.
void check_started_by_mpi(const Place& place);

// Collective over the ranks that meet in the context's store. Throws InvalidArgument when MPI did not start these
// ranks. `most` elements go into one call of MPI; tests make it small.
std::unique_ptr<Backend> make_mpi_backend(const BackendContext& context, std::size_t most = INT_MAX);

}  // namespace lockstep
