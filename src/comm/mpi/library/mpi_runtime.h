// MPI as one process has it: initialised once, called by one thread at a time, ended with the process.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>

#include "src/comm/mpi/library/mpi_api.h"

namespace lockstep::mpi {

// MPI calls need MPI_THREAD_SERIALIZED: every one is made with this lock held.
std::unique_lock<std::mutex> lock();

// Throws InvalidArgument when this process is one of several `ranks` and was not started by MPI.
void check_started(int ranks);

// Initialises MPI, unless the program has. Throws InvalidArgument when this process cannot take part in a group of
// `ranks` by MPI: it was not started by mpirun, too few were, or the program's own MPI_Init gave a lower thread level.
void start(int ranks);

// A call was given up that is still under way. MPI may write to its buffers, which are the caller's again, whenever it
// is called: so this process calls it no more, for any group. MPI_Finalize, which would wait for ranks that do not
// come, is left out too, by which mpirun ends the others.
void give_up(const std::string& reason);
bool has_given_up();
void throw_if_given_up();  // Error

// Throws Error that says what failed and how; `call` is the name of an MPI function. Locked or not.
void check(int code, const char* call);

// Waits for a request, which is null afterwards: the waiter progresses MPI. Tests at once, then with yields for a
// millisecond, then with sleeps of up to a millisecond. `trouble` is asked now and then and throws to give up; at
// the deadline, returns false. Both leave the request as it is: give_up() then. Throws Error when that was done
// elsewhere.
bool wait(MPI_Request& request, std::chrono::steady_clock::time_point deadline, const std::function<void()>& trouble,
          MPI_Status* status = MPI_STATUS_IGNORE);

}  // namespace lockstep::mpi
