#include "src/launch/supervise/process.h"

#include <fcntl.h>
#include <sys/prctl.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "lockstep/core/error.h"
#include "src/core/process/process_limits.h"
#include "src/launch/output/rank_stream.h"
#include "src/launch/topology/cores.h"

namespace lockstep::launch {

namespace {

constexpr int kCouldNotStart = 127;

[[noreturn]] void give_up(int failures, int rank, const char* step) {
  StartFailure failure{rank, errno, ""};
  std::strncpy(failure.step, step, sizeof(failure.step) - 1);
  (void)write_all(failures, &failure, sizeof(failure));
  ::_exit(kCouldNotStart);
}

bool redirect(int from, int to) { return ::dup2(from, to) == to; }

void apply(const std::vector<EnvironmentChange>& changes) {
  for (const auto& [name, value] : changes) {
    if (value)
      ::setenv(name.c_str(), value->c_str(), 1);
    else
      ::unsetenv(name.c_str());
  }
}

[[noreturn]] void execute(const RankProgram& program, int failures, int rank) {
  std::vector<char*> arguments;
  for (const std::string& argument : program.arguments) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  ::execvp(program.file.c_str(), arguments.data());
  give_up(failures, rank, "exec");
}

// Runs in the child from fork to exec. The order matters: first it is made sure that it cannot outlive the launcher,
// alone or with processes that it starts; only then it runs the user's program. The launcher's own descriptors close on
// exec.
[[noreturn]] void become_rank(const RankSetup& setup, const RankProgram& program, const Guard& guard,
                              const SignalGate& signals, pid_t launcher, int output, int errors, int failures) {
  const int rank = setup.rank;
  if (::setpgid(0, 0) != 0) give_up(failures, rank, "setpgid");
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) give_up(failures, rank, "prctl");
  if (::getppid() != launcher) ::_exit(kCouldNotStart);  // the launcher died before the line above
  if (!guard.register_self()) give_up(failures, rank, "guard");
  if (!setup.inherits_input) {
    const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null < 0 || !redirect(null, STDIN_FILENO)) give_up(failures, rank, "stdin");
    if (null != STDIN_FILENO) ::close(null);
  }
  if (!redirect(output, STDOUT_FILENO) || !redirect(errors, STDERR_FILENO)) give_up(failures, rank, "dup2");
  if (!setup.cores.empty() && !bind_to_cores(setup.cores)) give_up(failures, rank, "sched_setaffinity");
  if (setup.memory_node >= 0 && !prefer_memory_of(setup.memory_node)) give_up(failures, rank, "set_mempolicy");
  apply(setup.environment);
  signals.put_back();
  execute(program, failures, rank);
}

}  // namespace

RankProcess start_rank(const RankSetup& setup, const RankProgram& program, const Guard& guard,
                       const SignalGate& signals, int failures) {
  Pipe output = setup.has_terminal ? make_terminal_stream(setup.columns) : make_pipe_stream(),
       errors = make_pipe_stream();
  std::fflush(nullptr);  // otherwise the child would print buffered text a second time
  const pid_t launcher = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) throw Error("launch: cannot start rank {}: {}", setup.rank, why_not_started(errno));
  if (pid == 0) {
    output.read_end.reset();
    errors.read_end.reset();
    become_rank(setup, program, guard, signals, launcher, output.write_end.get(), errors.write_end.get(), failures);
  }
  ::setpgid(pid, pid);  // the child does it, too: either may come first
  return {setup.rank, pid, std::move(output.read_end), std::move(errors.read_end)};
}

std::optional<StartFailure> await_start(const Fd& failures) {
  StartFailure failure;
  for (;;) {
    const ssize_t got = ::read(failures.get(), &failure, sizeof(failure));
    if (got < 0 && errno == EINTR) continue;
    if (got == static_cast<ssize_t>(sizeof(failure))) return failure;
    return std::nullopt;
  }
}

}  // namespace lockstep::launch
