#include "src/launch/supervise/guard.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <vector>

#include "lockstep/core/error.h"
#include "src/core/process/process_limits.h"
#include "src/launch/supervise/pipe.h"

namespace lockstep::launch {

namespace {

// A write of this size is atomic on a pipe, so that ranks and launcher may write at the same time.
struct GuardMessage {
  pid_t group;  // > 0: registered; < 0: finished
};

bool close_by_range(int kept) {
  return (kept == 0 || ::close_range(0, static_cast<unsigned>(kept) - 1, 0) == 0) &&
         ::close_range(static_cast<unsigned>(kept) + 1, ~0U, 0) == 0;
}

// The descriptors that this process has open; empty without /proc.
std::vector<int> open_descriptors() {
  std::vector<int> open;
  DIR* const folder = ::opendir("/proc/self/fd");
  if (folder == nullptr) return open;
  while (const dirent* entry = ::readdir(folder))
    if (const int fd = std::atoi(entry->d_name); entry->d_name[0] != '.' && fd != ::dirfd(folder)) open.push_back(fd);
  ::closedir(folder);
  return open;
}

// For Linux before 5.9, which lacks close_range(), and sandboxes that refuse it.
void close_one_by_one(int kept) {
  constexpr long kMost = 1 << 20;  // if the limit is higher, no process has that many open
  std::vector<int> open = open_descriptors();
  if (open.empty()) {
    open.resize(static_cast<std::size_t>(std::clamp(::sysconf(_SC_OPEN_MAX), 1024L, kMost)));
    std::iota(open.begin(), open.end(), 0);
  }
  for (const int fd : open)
    if (fd != kept) ::close(fd);
}

// The guard must not keep a terminal, a pipe of the user or a folder busy.
void close_everything_but(int fd) {
  if (!close_by_range(fd)) close_one_by_one(fd);
  if (::chdir("/") != 0) return;  // harmless: the folder stays busy
}

[[noreturn]] void watch(int from_launcher) {
  ::prctl(PR_SET_NAME, "lockrun-guard");
  std::vector<pid_t> groups;
  GuardMessage message{};
  for (;;) {
    const ssize_t got = ::read(from_launcher, &message, sizeof(message));
    if (got < 0 && errno == EINTR) continue;
    if (got != static_cast<ssize_t>(sizeof(message))) break;
    if (message.group > 0)
      groups.push_back(message.group);
    else
      groups.erase(std::remove(groups.begin(), groups.end(), -message.group), groups.end());
  }
  for (const pid_t group : groups) ::kill(-group, SIGKILL);
  ::_exit(0);
}

// The intermediate process exits at once, with errno if it could not start the guard, so that the guard's parent is
// init and not the launcher.
[[noreturn]] void start_guard(int from_launcher) {
  ::setsid();
  const pid_t guard = ::fork();
  if (guard != 0) ::_exit(guard > 0 ? 0 : errno);
  sigset_t all;
  sigfillset(&all);
  ::sigprocmask(SIG_BLOCK, &all, nullptr);
  close_everything_but(from_launcher);
  watch(from_launcher);
}

}  // namespace

Guard::Guard() {
  Pipe pipe = make_pipe();
  const pid_t between = ::fork();
  if (between < 0) throw Error("launch: cannot start the guard process: {}", why_not_started(errno));
  if (between == 0) {
    pipe.write_end.reset();  // otherwise it would wait for itself
    start_guard(pipe.read_end.get());
  }
  int status = 0;
  while (::waitpid(between, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    throw Error("launch: cannot start the guard process: {}",
                why_not_started(WIFEXITED(status) ? WEXITSTATUS(status) : EAGAIN));
  to_guard_ = std::move(pipe.write_end);
}

bool Guard::register_self() const {
  const GuardMessage message{::getpid()};
  return write_all(to_guard_.get(), &message, sizeof(message));
}

void Guard::forget(pid_t group) const {
  const GuardMessage message{-group};
  // Fails only if the guard was killed; then there is no list to keep.
  (void)write_all(to_guard_.get(), &message, sizeof(message));
}

}  // namespace lockstep::launch
