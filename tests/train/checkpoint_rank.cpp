// A rank that is killed while it saves a checkpoint:
//
//   checkpoint_rank FOLDER KILL_AT [named] [sliced] [second] [background] [exit]
//
// With "named" the file system has no files without a name; with "sliced" each rank has a slice of the optimizer's
// state. Rank 0, or rank 1 with "second", is killed by SIGKILL in its KILL_AT-th call that changes the disk; a write
// has then written half of its bytes. The calls are intercepted by defining them here, so that the library calls these
// functions. With "background" a thread saves, and main() ends at once, or with "exit" calls exit().
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/zero.h"
#include "tests/train/checkpoint_trainee.h"

namespace {

thread_local int calls_left = 0;           // of the main thread; 0: no rank is killed
std::atomic<int> calls_left_of_writer{0};  // the same of the thread that writes
bool all_are_named = false;

// The thread that writes in the background has the lowest priority.
bool is_writer() { return ::getpriority(PRIO_PROCESS, 0) == 19; }

bool dies_now() {
  if (calls_left_of_writer > 0 && is_writer()) return --calls_left_of_writer == 0;
  return calls_left > 0 && --calls_left == 0;
}

void die() {
  ::kill(::getpid(), SIGKILL);
  for (;;) ::pause();
}

template <typename Call> Call* the_real(const char* name) { return reinterpret_cast<Call*>(::dlsym(RTLD_NEXT, name)); }

}  // namespace

extern "C" {

ssize_t write(int fd, const void* data, size_t bytes) {
  static auto* const real = the_real<ssize_t(int, const void*, size_t)>("write");
  if (!dies_now()) return real(fd, data, bytes);
  if (real(fd, data, bytes / 2) >= 0) die();
  return -1;
}

int open(const char* path, int flags, ...) {
  static auto* const real = the_real<int(const char*, int, mode_t)>("open");
  va_list rest;
  va_start(rest, flags);
  const auto mode = static_cast<mode_t>((flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, int) : 0);
  va_end(rest);
  if (!all_are_named || (flags & O_TMPFILE) != O_TMPFILE) return real(path, flags, mode);
  errno = EOPNOTSUPP;
  return -1;
}

int linkat(int from_folder, const char* from, int to_folder, const char* to, int flags) noexcept {
  static auto* const real = the_real<int(int, const char*, int, const char*, int)>("linkat");
  if (dies_now()) die();
  return real(from_folder, from, to_folder, to, flags);
}

int fsync(int fd) {
  static auto* const real = the_real<int(int)>("fsync");
  if (dies_now()) die();
  return real(fd);
}

int rename(const char* from, const char* to) noexcept {
  static auto* const real = the_real<int(const char*, const char*)>("rename");
  if (dies_now()) die();
  return real(from, to);
}

int mkdir(const char* path, mode_t mode) noexcept {
  static auto* const real = the_real<int(const char*, mode_t)>("mkdir");
  if (dies_now()) die();
  return real(path, mode);
}

int unlinkat(int folder, const char* path, int flags) noexcept {
  static auto* const real = the_real<int(int, const char*, int)>("unlinkat");
  if (dies_now()) die();
  return real(folder, path, flags);
}

}  // extern "C"

namespace {

int save(int count, char** arguments) {
  if (count < 3) throw lockstep::InvalidArgument("usage: checkpoint_rank FOLDER KILL_AT [WORD]...");
  const std::vector<std::string> how(arguments + 3, arguments + count);
  const auto is_given = [&](const char* word) { return std::find(how.begin(), how.end(), word) != how.end(); };
  all_are_named = is_given("named");
  const auto group = lockstep::init_process_group();
  lockstep::train::CheckpointTrainee trainee(2);
  std::optional<lockstep::DistributedDataParallel> ddp;
  std::optional<lockstep::ZeroRedundancyOptimizer> zero;
  if (is_given("sliced")) zero.emplace(ddp.emplace(trainee.net, group), trainee.sgd);
  auto parts = trainee.parts(2);
  parts.keep = 1;  // so that the save also removes the previous checkpoint
  group->barrier();
  const bool in_background = is_given("background");
  if (group->rank() == (is_given("second") ? 1 : 0))
    in_background ? void(calls_left_of_writer = std::atoi(arguments[2])) : void(calls_left = std::atoi(arguments[2]));
  lockstep::train::save_checkpoint(arguments[1], parts, {.background = in_background});
  if (is_given("exit")) std::exit(0);
  if (in_background) return 0;
  calls_left = 0;
  group->barrier();
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return lockstep::run_main("checkpoint_rank", save, argc, argv); }
