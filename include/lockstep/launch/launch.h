// Starts the ranks of a job, watches them, and ends all of them when one fails. Both lockrun and spawn() use it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#pragma GCC visibility push(default)
namespace lockstep::launch {

struct LaunchSpec {
  // kDevices: one rank for each GPU if the ranks may use GPUs and can, else one for each core.
  enum class RanksFrom { kNumber, kGpus, kCores, kDevices };
  RanksFrom ranks_from = RanksFrom::kNumber;
  int ranks = 1;  // on this node, with RanksFrom::kNumber
  // A parameter server's job (train/parameter_server.h): numbers on all nodes together, both zero or both set. The
  // first ranks are workers.
  int servers = 0, workers = 0;
  // With servers, on one node: a worker that fails does not end the job as long as another one runs or has ended with
  // 0. Its failure is printed when it is seen and at the end, and does not change the exit code. For
  // ParameterServerOptions::allow_worker_failures.
  bool allow_worker_failures = false;
  std::vector<std::string> command;  // program and arguments; the program is looked up in PATH
  int nodes = 1;                     // each has its own launcher, and any number of ranks
  int node_rank = 0;                 // of this node
  std::string master_host;           // nodes > 1: name or address of node 0
  // nodes > 1: the port on which node 0's launcher listens and serves the store. One node: the ranks' MASTER_PORT,
  // which the program may use; 0 means a free port.
  std::uint16_t master_port = 0;
  std::string gpus;        // auto, all, none, or numbers and UUIDs; empty: LOCKSTEP_DEVICE, else auto
  int share_gpu = 0;       // number of ranks on each GPU, or share of the CPU; 0: LOCKSTEP_SHARE_GPU, else 1
  std::string flight_dir;  // folder for flight records; empty: LOCKSTEP_FLIGHT_DIR
  // A job that fails is started again, on the same ports and with the same token, up to this many times: see launch().
  int max_restarts = 0;
  std::string report_file;  // JSON about the attempts, replaced after each; of node 0. Empty: none
  bool prefix = true;       // print "[rank] " in front of every line
  bool fold = true;  // print a line that several ranks write at about the same time once, after "[0-3] "; needs prefix
  bool terminals = true;   // connect a rank's stdout to a terminal, so that C programs flush each line; else to a pipe
  bool bind_cores = true;  // give each rank its own cores, near its GPU, if the inherited affinity has enough
  std::chrono::milliseconds grace = std::chrono::milliseconds(1500);  // from a rank's failure to SIGKILL of the others
  std::chrono::milliseconds interrupt_grace = std::chrono::milliseconds(5000);  // from a signal to SIGKILL of all ranks
};

// Runs the job to its end and returns the exit code for the launcher: 0, the code of the first rank that failed, 128 +
// signal (the rank's or the launcher's), or 127 or 126 if the program cannot be run. On failure prints the rank, the
// cause and the rank's last stderr lines. On several nodes all launchers report the same cause and return the same
// code. With max_restarts, an attempt that has failed is followed by another one with the same ranks, in which they
// find attempt() one higher; the program continues from its checkpoint. There is no other attempt after success, a
// signal to lockrun or preemption (all ranks have left with 0 or kPreemptedExitCode), if the program cannot be run or
// refuses its arguments, and once the same failure has come at the same step twice in a row. At the end a job of
// several attempts prints a line for each. Call it from the main thread of a process without other threads: ranks die
// with the thread that forked them. Blocks. Throws InvalidArgument for an invalid spec, RendezvousError if the nodes do
// not find each other, Error if a system call fails.
int launch(const LaunchSpec& spec);

// In a rank: how often the launcher has restarted the job, from 0: LOCKSTEP_RESTART_COUNT (lockrun --max-restarts),
// TORCHELASTIC_RESTART_COUNT or SLURM_RESTART_COUNT, whichever is set first.
int attempt();

// Runs `fn` as `n` ranks under the same rules; spawn.h has the same in the shape of torch.multiprocessing. Each rank is
// this program, started again with the same arguments: code before this call runs in the ranks, too, and they inherit
// only the environment and the working directory. In the parent, returns launch()'s exit code. In a rank, or if another
// launcher (lockrun, mpirun) has already made this process a rank, runs `fn` and returns its result. main should return
// the value. Throws what launch() throws.
int spawn(int n, int argc, char** argv, const std::function<int(int argc, char** argv)>& fn);

// Returns the cores of each rank: disjoint, contiguous shares of `cores`; empty lists if there are fewer cores than
// ranks. A pure function.
std::vector<std::vector<int>> assign_cores(const std::vector<int>& cores, int ranks);

}  // namespace lockstep::launch
#pragma GCC visibility pop
