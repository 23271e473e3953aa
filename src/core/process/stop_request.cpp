#include "src/core/process/stop_request.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <mutex>

#include "src/core/process/first_process.h"

namespace lockstep {

namespace {

std::atomic<bool> is_requested{false}, ends_at_once{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler uses them");
std::atomic<void (*)(int)> end_handler{nullptr};
struct sigaction term_before {};

void handle_stop_signal(int signal) {
  if (signal == SIGTERM && ends_at_once.load()) {
    if (is_default_action(term_before.sa_handler)) return end_by_signal(signal);
    return term_before.sa_handler(signal);
  }
  is_requested.store(true);
}

void take_stop_signal(int signal, struct sigaction& before) {
  struct sigaction current {};
  ::sigaction(signal, nullptr, &current);
  if ((current.sa_flags & SA_SIGINFO) != 0) return;
  const bool is_ours = signal == SIGTERM && current.sa_handler == end_handler.load();
  if (!is_ours && !is_default_action(current.sa_handler)) return;
  before = current;
  struct sigaction action {};
  action.sa_handler = handle_stop_signal;
  action.sa_flags = SA_RESTART;
  ::sigaction(signal, &action, nullptr);
}

}  // namespace

void remember_stop_signals() {
  static std::once_flag once;
  std::call_once(once, [] {
    static struct sigaction notice_before {};
    take_stop_signal(SIGTERM, term_before);
    take_stop_signal(SIGUSR2, notice_before);
  });
}

bool is_stop_requested() { return is_requested.load(); }
void note_end_handler(void (*handler)(int)) { end_handler.store(handler); }
void end_at_stop_signals() { ends_at_once.store(true); }

}  // namespace lockstep
