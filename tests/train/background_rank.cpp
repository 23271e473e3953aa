// A rank of a training with slices of the optimizer's state, which saves in the background and loses a peer:
//
//   background_rank FOLDER
//
// The ranks save step 1, and begin to save step 2; rank 1 kills itself while its thread writes. Rank 0 prints how its
// waiting ended, and ends like a program whose exception has left main().
#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <string>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/zero.h"
#include "tests/train/checkpoint_trainee.h"

namespace {
std::atomic<bool> dies_in_writing{false};
}

// The library calls this function instead of the C library's. The thread that writes has the lowest priority.
extern "C" int fsync(int fd) {
  static auto* const real = reinterpret_cast<int (*)(int)>(::dlsym(RTLD_NEXT, "fsync"));
  if (dies_in_writing && ::getpriority(PRIO_PROCESS, 0) == 19) ::kill(::getpid(), SIGKILL);
  return real(fd);
}

namespace {

int run(int count, char** arguments) {
  if (count != 2) throw lockstep::InvalidArgument("usage: background_rank FOLDER");
  const std::string folder = arguments[1];
  const auto group = lockstep::init_process_group();
  lockstep::train::CheckpointTrainee trainee(2);
  lockstep::DistributedDataParallel ddp(trainee.net, group);
  const lockstep::ZeroRedundancyOptimizer zero(ddp, trainee.sgd);
  lockstep::train::save_checkpoint(folder, trainee.parts(1), {.background = true});
  lockstep::train::wait_for_saves();
  group->barrier();
  dies_in_writing = group->rank() == 1;
  lockstep::train::save_checkpoint(folder, trainee.parts(2), {.background = true});
  try {
    lockstep::train::wait_for_saves();
  } catch (const lockstep::PeerLost& error) {
    fmt::print("rank {}: {}\n", group->rank(), error.what());
    throw;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return lockstep::run_main("background_rank", run, argc, argv); }
