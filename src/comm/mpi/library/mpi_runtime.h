// MPI in one process: initialised once, called by one thread at a time, finalised when the process ends.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>

#include "src/comm/mpi/library/mpi_api.h"

namespace lockstep::mpi {

// MPI runs with MPI_THREAD_SERIALIZED: hold this lock in every MPI call.
std::unique_lock<std::mutex> lock();

// Throws InvalidArgument if this process is one of several `ranks` and was not started by MPI.
void check_started(int ranks);

// Initialises MPI, unless the program has. Throws InvalidArgument if this process cannot take part in an MPI group of
// `ranks`: it was not started by mpirun, too few were, or the program's own MPI_Init gave a lower thread level.
void start(int ranks);

// Abandons MPI because of a call that is still under way and will not be waited for. Any later MPI call might write to
// that call's buffers, which belong to the caller again, so this process makes none, for any group. It also skips
// MPI_Finalize, which would wait for missing ranks; mpirun then ends the others.
void give_up(const std::string& reason);
bool has_given_up();
void throw_if_given_up();  // throws Error

// Throws Error with the call, an MPI function's name, and the reason. The lock need not be held.
void check(int code, const char* call);

// Waits for a request, which is null afterwards; waiting progresses MPI. Tests at once, then with yields for a
// millisecond, then with sleeps of up to a millisecond. Calls `trouble` from time to time, which throws to stop
// waiting. Returns false at the deadline. In both cases the request stays open: call give_up(). Throws Error if another
// thread has given up.
bool wait(MPI_Request& request, std::chrono::steady_clock::time_point deadline, const std::function<void()>& trouble,
          MPI_Status* status = MPI_STATUS_IGNORE);

}  // namespace lockstep::mpi
