// Starting ranks: spawn them, watch them, end all when one fails. lockrun's main and a program's spawn() share this.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#pragma GCC visibility push(default)
namespace lockstep::launch {

struct LaunchSpec {
  enum class RanksFrom {
    kNumber,
    kGpus,
    kCores,
    kDevices
  };  // kDevices: GPUs when ranks may and can use some, else cores
  RanksFrom ranks_from = RanksFrom::kNumber;
  int ranks = 1;  // on this node, unless ranks_from says to count what there is
  int servers = 0,
      workers = 0;  // of all nodes together, both or neither: see train/parameter_server.h; workers are the first ranks
  std::vector<std::string> command;  // program and arguments; looked up in PATH
  int nodes = 1;                     // each has a launcher of its own, and as many ranks as it likes
  int node_rank = 0;                 // among them
  std::string master_host;           // nodes > 1: node 0's, a name or an address
  // nodes > 1: where node 0's launcher waits, and then serves the store. One node: the ranks' MASTER_PORT, which is
  // left to the program; 0: a free one.
  std::uint16_t master_port = 0;
  std::string gpus;        // auto, all, none, or a list of numbers and UUIDs; empty: as LOCKSTEP_DEVICE says, else auto
  int share_gpu = 0;       // so many ranks on one GPU, or on shares of the CPU; 0: as LOCKSTEP_SHARE_GPU says, else 1
  std::string flight_dir;  // where ranks write flight records; empty: as LOCKSTEP_FLIGHT_DIR says
  bool prefix = true;      // "[rank] " in front of every line
  bool fold = true;        // a line that several ranks write within a moment comes once, "[0-3] "; needs prefix
  bool terminals = true;   // a rank's stdout is a terminal, into which C programs write line by line; else a pipe
  bool bind_cores = true;  // disjoint cores for each rank, when the inherited affinity has enough; near its GPU
  std::chrono::milliseconds grace = std::chrono::milliseconds(1500);  // a rank's failure to SIGKILL of the others
  std::chrono::milliseconds interrupt_grace =
      std::chrono::milliseconds(5000);  // a signal to the launcher to SIGKILL of all
};

// Runs the job to its end and returns the exit code that the launcher should leave with: 0, the first failing rank's
// code, 128 + signal (the rank's or the launcher's own), 127 or 126 for a program that cannot be run. Prints rank,
// cause and the rank's last stderr lines on failure. With several nodes all launchers name the same cause and return
// the same code. Call from the main thread of a process without other threads: ranks die with the thread that forked
// them. Throws InvalidArgument for a spec that cannot be run, RendezvousError when the nodes do not come together,
// Error when the system refuses.
int launch(const LaunchSpec& spec);

// Runs `fn` as `n` ranks under the same rules. Each rank is this program started again with the same arguments: it
// comes from main to this call a second time, so what stands before it runs in the ranks too, and has set up nothing
// that they inherit but the environment and the working directory. In the parent returns launch()'s exit code; in a
// rank, and when a launcher (lockrun, mpirun) has made this process a rank already, runs `fn` in place and returns its
// exit code. Both are for main to leave with. Throws what launch() throws.
int spawn(int n, int argc, char** argv, const std::function<int(int argc, char** argv)>& fn);

// Which cores each rank gets: disjoint, contiguous shares of `cores`; empty lists when there are fewer cores than
// ranks. A pure function.
std::vector<std::vector<int>> assign_cores(const std::vector<int>& cores, int ranks);

}  // namespace lockstep::launch
#pragma GCC visibility pop
