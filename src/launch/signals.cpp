#include "src/launch/signals.h"

#include <sys/signalfd.h>

#include <cerrno>
#include <cstring>

#include "lockstep/core/error.h"

namespace lockstep::launch {

namespace {

// nohup, or a shell that started us in the background, has said that these are not for us. A blocked signal would be
// queued in spite of that.
bool is_ignored(int signal) {
  struct sigaction action {};
  ::sigaction(signal, nullptr, &action);
  return action.sa_handler == SIG_IGN;
}

}  // namespace

SignalGate::SignalGate() {
  sigset_t watched;
  sigemptyset(&watched);
  for (const int signal : {SIGTERM, SIGCHLD}) sigaddset(&watched, signal);
  for (const int signal : {SIGINT, SIGHUP, SIGQUIT, SIGTSTP, SIGUSR1})
    if (!is_ignored(signal)) sigaddset(&watched, signal);
  fd_ = Fd(::signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd_) throw Error("launch: cannot watch for signals: {}", std::strerror(errno));
  struct sigaction action {};
  action.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &action, &pipe_before_);
  action.sa_handler = SIG_DFL;
  ::sigaction(SIGCHLD, &action, &child_before_);
  ::sigprocmask(SIG_BLOCK, &watched, &mask_before_);
}

SignalGate::~SignalGate() { put_back(); }

void SignalGate::put_back() const {
  ::sigaction(SIGPIPE, &pipe_before_, nullptr);
  ::sigaction(SIGCHLD, &child_before_, nullptr);
  ::sigprocmask(SIG_SETMASK, &mask_before_, nullptr);
}

int SignalGate::next() {
  signalfd_siginfo info{};
  return ::read(fd_.get(), &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info)) ? static_cast<int>(info.ssi_signo) : 0;
}

}  // namespace lockstep::launch
