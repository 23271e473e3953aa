#include "src/comm/mpi/library/mpi_runtime.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <thread>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "src/comm/net/backoff.h"

namespace lockstep::mpi {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

std::mutex& mutex() {
  static std::mutex one;
  return one;
}

std::string text_of(int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  api().MPI_Error_string(code, text, &length);
  return {text, static_cast<std::size_t>(length)};
}

// Checks the variables of Open MPI and those that other launchers with PMI set.
bool was_started_by_mpi() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_SIZE", "PMI_RANK"})
    if (env::text(name)) return true;
  return false;
}

class Runtime {
 public:
  Runtime() {
    int is_initialized = 0, level = MPI_THREAD_SINGLE;
    api().MPI_Initialized(&is_initialized);
    if (is_initialized != 0) {
      api().MPI_Query_thread(&level);
    } else {
      check(api().MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level), "MPI_Init_thread");
      is_ours_ = true;
    }
    api().MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (level < MPI_THREAD_SERIALIZED)
      throw InvalidArgument(
          "MPI was initialised with thread level {}, expected MPI_THREAD_SERIALIZED; call MPI_Init_thread, or let "
          "Lockstep initialise MPI",
          level);
  }

  // A rank that ends with an error skips MPI_Finalize, so that mpirun ends the others. One that ends normally waits for
  // those that still work; it sleeps between checks, unlike MPI_Finalize.
  ~Runtime() {
    if (!is_ours_ || is_broken.load() || exit_status != 0) return;
    MPI_Request all_are_here = MPI_REQUEST_NULL;
    if (api().MPI_Ibarrier(MPI_COMM_WORLD, &all_are_here) != MPI_SUCCESS) return;
    try {
      wait(all_are_here, Clock::time_point::max(), [] {});
      api().MPI_Finalize();
    } catch (const Error&) {
      // MPI is unusable: without MPI_Finalize mpirun ends the job.
    }
  }

  std::atomic<bool> is_broken{false};
  std::string reason;   // written before is_broken
  int exit_status = 0;  // of the process when it exits

 private:
  bool is_ours_ = false;
};

Runtime& runtime() {
  mutex();  // constructed first, so that it outlives the runtime
  static Runtime one;
  // Registered after the destructor, so it is called before it.
  [[maybe_unused]] static const int watches_exit =
      on_exit([](int status, void* self) { static_cast<Runtime*>(self)->exit_status = status; }, &one);
  return one;
}

}  // namespace

std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex()); }

void give_up(const std::string& reason) {
  const auto held = lock();
  if (runtime().is_broken.load()) return;
  runtime().reason = reason;
  runtime().is_broken.store(true);
}

bool has_given_up() { return runtime().is_broken.load(); }

void throw_if_given_up() {
  if (has_given_up()) throw Error("this process has abandoned MPI, for all groups, after: {}", runtime().reason);
}

void check(int code, const char* call) {
  if (code != MPI_SUCCESS) throw Error("{}: {}", call, text_of(code));
}

void check_started(int ranks) {
  if (ranks > 1 && !was_started_by_mpi())
    throw InvalidArgument(
        "this process was not started by MPI; start the program with mpirun -n {}, or use "
        "LOCKSTEP_BACKEND=host, which needs no MPI",
        ranks);
}

void start(int ranks) {
  check_started(ranks);
  const auto held = lock();
  runtime();
  int world = 0;
  check(api().MPI_Comm_size(MPI_COMM_WORLD, &world), "MPI_Comm_size");
  if (world < ranks)
    throw InvalidArgument(
        "the group has {} ranks, but mpirun started {}: every rank must be a process of MPI's own, and mpirun Open "
        "MPI's",
        ranks, world);
}

bool wait(MPI_Request& request, Clock::time_point deadline, const std::function<void()>& trouble, MPI_Status* status) {
  const auto yield_until = Clock::now() + kYieldFor;
  microseconds nap(20);
  while (true) {
    int is_done = 0;
    {
      const auto held = lock();
      if (has_given_up()) trouble();  // an abort of this group is reported as such
      throw_if_given_up();
      check(api().MPI_Test(&request, &is_done, status), "MPI_Test");
    }
    if (is_done != 0) return true;
    trouble();
    const auto now = Clock::now();
    if (now >= deadline) return false;
    if (now < yield_until) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(nap);
      nap = std::min<microseconds>(nap * 2, std::chrono::milliseconds(1));
    }
  }
}

}  // namespace lockstep::mpi
