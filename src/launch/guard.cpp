#include "src/launch/guard.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <vector>

#include "lockstep/core/error.h"
#include "src/core/process_limits.h"
#include "src/launch/pipe.h"

namespace lockstep::launch {

namespace {

// One write of this size is atomic on a pipe, so that ranks and launcher may write at the same time.
struct Message {
  pid_t group;  // > 0: registered; < 0: finished
};

// The guard must not keep a terminal, a pipe of the user's or a folder busy.
void let_go_of_everything_but(int fd) {
  if (fd > 0) ::close_range(0, static_cast<unsigned>(fd) - 1, 0);
  ::close_range(static_cast<unsigned>(fd) + 1, ~0U, 0);
  if (::chdir("/") != 0) return;  // harmless: it only keeps the folder busy
}

[[noreturn]] void watch(int from_launcher) {
  ::prctl(PR_SET_NAME, "lockrun-guard");
  std::vector<pid_t> groups;
  Message message{};
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

// The process in between ends at once, with errno when it could not start the guard, so that the guard belongs to init and not to the
// launcher.
[[noreturn]] void start_guard(int from_launcher) {
  ::setsid();
  const pid_t guard = ::fork();
  if (guard != 0) ::_exit(guard > 0 ? 0 : errno);
  sigset_t all;
  sigfillset(&all);
  ::sigprocmask(SIG_BLOCK, &all, nullptr);
  let_go_of_everything_but(from_launcher);
  watch(from_launcher);
}

}  // namespace

Guard::Guard() {
  Pipe pipe = make_pipe();
  const pid_t between = ::fork();
  if (between < 0) throw Error("launch: cannot start the guard process: {}", why_not_started(errno));
  if (between == 0) start_guard(pipe.read_end.get());
  int status = 0;
  while (::waitpid(between, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    throw Error("launch: cannot start the guard process: {}", why_not_started(WIFEXITED(status) ? WEXITSTATUS(status) : EAGAIN));
  to_guard_ = std::move(pipe.write_end);
}

bool Guard::register_self() const {
  const Message message{::getpid()};
  return write_all(to_guard_.get(), &message, sizeof(message));
}

void Guard::forget(pid_t group) const {
  const Message message{-group};
  // Fails only when somebody killed the guard: then there is nobody to tell.
  (void)write_all(to_guard_.get(), &message, sizeof(message));
}

}  // namespace lockstep::launch
