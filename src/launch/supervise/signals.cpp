#include "src/launch/supervise/signals.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "lockstep/core/error.h"

namespace lockstep::launch {

namespace {

// nohup, or a shell that started us in the background, has set these signals to be ignored. A blocked signal would be
// queued all the same.
bool is_ignored(int signal) {
  struct sigaction action {};
  ::sigaction(signal, nullptr, &action);
  return action.sa_handler == SIG_IGN;
}

bool catches(pid_t process, int signal) {
  std::ifstream status("/proc/" + std::to_string(process) + "/status");
  constexpr const char* kCaught = "SigCgt:";
  for (std::string line; std::getline(status, line);)
    if (line.rfind(kCaught, 0) == 0) {
      const std::uint64_t mask = std::strtoull(line.c_str() + std::char_traits<char>::length(kCaught), nullptr, 16);
      return (mask >> (signal - 1) & 1) != 0;
    }
  return false;
}

}  // namespace

SignalGate::SignalGate() {
  sigset_t watched;
  sigemptyset(&watched);
  for (const int signal : {SIGTERM, SIGCHLD}) sigaddset(&watched, signal);
  const auto watch = [&watched](int signal) {
    if (!is_ignored(signal)) sigaddset(&watched, signal);
  };
  for (const int signal : {SIGINT, SIGHUP, SIGQUIT, SIGTSTP, SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGPOLL,
                           SIGPWR, SIGSTKFLT, SIGXCPU})
    watch(signal);
  for (int signal = SIGRTMIN; signal <= SIGRTMAX; ++signal) watch(signal);
  fd_ = Fd(::signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd_) throw Error("launch: cannot watch for signals: {}", std::strerror(errno));
  struct sigaction action {};
  action.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &action, &pipe_before_);
  ::sigaction(SIGXFSZ, &action, &file_size_before_);
  action.sa_handler = SIG_DFL;
  ::sigaction(SIGCHLD, &action, &child_before_);
  ::sigprocmask(SIG_BLOCK, &watched, &mask_before_);
}

SignalGate::~SignalGate() { put_back(); }

void SignalGate::put_back() const {
  ::sigaction(SIGPIPE, &pipe_before_, nullptr);
  ::sigaction(SIGXFSZ, &file_size_before_, nullptr);
  ::sigaction(SIGCHLD, &child_before_, nullptr);
  ::sigprocmask(SIG_SETMASK, &mask_before_, nullptr);
}

int SignalGate::next() {
  signalfd_siginfo info{};
  return ::read(fd_.get(), &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info)) ? static_cast<int>(info.ssi_signo)
                                                                                      : 0;
}

bool ends_job(int signal) { return signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT; }

std::string name_of_signal(int signal) {
  if (const char* name = ::sigabbrev_np(signal)) return std::string("SIG") + name;
  return "SIGRTMIN+" + std::to_string(signal - SIGRTMIN);
}

int signal_group_where_caught(pid_t group, int signal) {
  int count = 0;
  std::error_code failure;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", failure)) {
    const auto process = static_cast<pid_t>(std::atol(entry.path().filename().c_str()));
    if (process <= 0 || ::getpgid(process) != group || !catches(process, signal)) continue;
    if (::kill(process, signal) == 0) ++count;
  }
  return count;
}

}  // namespace lockstep::launch
