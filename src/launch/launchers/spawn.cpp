// spawn() in PyTorch's shape. The ranks belong to a process between the parent and them, a fork of the parent that
// supervises them as lockrun does: so the parent is free while they run, and the supervisor's end, which the kernel
// causes when the parent dies, ends them.
#include "lockstep/launch/spawn.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "lockstep/comm/bootstrap.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "src/launch/launchers/spawned_job.h"
#include "src/launch/supervise/pipe.h"

namespace lockstep::launch {

namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using Run = std::function<void(int, const std::vector<std::string>&)>;

constexpr std::size_t kMostBytes = 100'000;  // Linux allows 128 KiB for one variable
constexpr int kWrongUse = 2, kFailed = 1;    // as run_main
constexpr milliseconds kLook(10);
constexpr milliseconds kMostForEnd(15'000);  // five seconds are the ranks'

int calls_made = 0;  // spawn() is for the main thread
bool is_in_rank_function = false;

std::string variable_of(int call, const std::vector<std::string>& args) {
  std::string text;
  try {
    text = json{{"call", call}, {"args", args}}.dump();
  } catch (const json::type_error&) {
    throw InvalidArgument("spawn: an argument is not UTF-8: pass the name of a file with these bytes");
  }
  if (text.size() > kMostBytes)
    throw InvalidArgument(
        "spawn: the arguments have {} bytes together, as a JSON text; at most {} can be passed: put them into a file",
        text.size(), kMostBytes);
  return text;
}

// ThreadSanitizer has a thread of its own.
void check_has_one_thread() {
#ifndef __SANITIZE_THREAD__
  std::error_code failure;
  const std::filesystem::directory_iterator all("/proc/self/task", failure);
  const auto threads = failure ? 1 : std::distance(begin(all), end(all));
  if (threads > 1)
    throw InvalidArgument(
        "spawn: this process has {} threads, and ranks die with the thread that forked them: call spawn() from main "
        "before the first tensor operation, process group or thread",
        threads);
#endif
}

const Run* rank_run = nullptr;  // globals, since run_main takes a plain function
const std::vector<std::string>* rank_args = nullptr;

// Runs fn in this process, a rank, and ends it: the code after the call of spawn() is the parent's.
[[noreturn]] void run_and_end(const Run& run, const std::vector<std::string>& args) {
  rank_run = &run;
  rank_args = &args;
  is_in_rank_function = true;
  const auto body = [](int, char**) {
    (*rank_run)(read_job_environment(env::text).place.rank, *rank_args);
    return 0;
  };
  char* const no_arguments[] = {nullptr};
  std::exit(run_main(program_invocation_short_name, body, 0, const_cast<char**>(no_arguments)));
}

// Returns in a rank of an earlier or later call only.
void run_if_rank(int call, const Run& run, const std::vector<std::string>& args, int nprocs) {
  if (is_in_rank_function)
    throw InvalidArgument("spawn: called in the function of another spawn(): a rank starts no ranks");
  const auto given = env::text(env::kSpawnCall);
  if (!given) {
    const int world = read_job_environment(env::text).place.world_size;
    if (world != nprocs)
      throw InvalidArgument(
          "spawn: a launcher has made this process one of {} ranks, and the call requests {}: start the program "
          "without the launcher, or pass its number of ranks",
          world, nprocs);
    run_and_end(run, args);
  }
  const json parsed = json::parse(*given, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object() || !parsed.contains("call") || !parsed.contains("args"))
    throw InvalidArgument("{}='{}' is invalid: only spawn() sets it", env::kSpawnCall, *given);
  if (parsed.at("call").get<int>() == call) run_and_end(run, parsed.at("args").get<std::vector<std::string>>());
}

// The process between the parent and the ranks.
[[noreturn]] void supervise(int nprocs, const std::string& variable, pid_t parent, const Fd& pids) {
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  int code = kFailed;
  if (::getppid() != parent) ::_exit(code);  // it has died before the request to the kernel
  try {
    code = run_spawned_job(nprocs, {{env::kSpawnCall, variable}}, [&](const std::vector<int>& started) {
      write_all(pids.get(), started.data(), started.size() * sizeof(int));
    });
  } catch (const InvalidArgument& error) {
    fmt::print(stderr, "spawn: error: {}\n", error.what());
    code = kWrongUse;
  } catch (const std::exception& error) {
    fmt::print(stderr, "spawn: error: {}\n", error.what());
  }
  std::fflush(nullptr);
  ::_exit(code);
}

// Returns fewer than `ranks` if the supervisor could not start all of them.
std::vector<int> read_pids(const Fd& pipe, int ranks) {
  std::vector<int> pids(static_cast<std::size_t>(ranks));
  std::size_t got = 0;
  const std::size_t wanted = pids.size() * sizeof(int);
  while (got < wanted) {
    const ssize_t bytes = ::read(pipe.get(), reinterpret_cast<char*>(pids.data()) + got, wanted - got);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) break;
    got += static_cast<std::size_t>(bytes);
  }
  pids.resize(got / sizeof(int));
  return pids;
}

}  // namespace

struct SpawnContext::Job {
  int ranks = 0;
  pid_t supervisor = 0;  // 0: has ended
  int exit_code = 0;     // then
  std::vector<int> pids = {};

  // Returns whether the supervisor has ended.
  bool look(int flags) {
    if (supervisor == 0) return true;
    int status = 0;
    pid_t found = 0;
    do found = ::waitpid(supervisor, &status, flags);
    while (found < 0 && errno == EINTR);
    if (found == 0) return false;
    if (found < 0) throw Error("spawn: the process that watches the ranks is gone: {}", std::strerror(errno));
    supervisor = 0;
    exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return true;
  }

  // Returns whether the supervisor has ended within this time.
  bool wait(milliseconds most) {
    const auto begin = std::chrono::steady_clock::now();
    while (!look(WNOHANG)) {
      const auto waited = std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begin);
      if (waited >= most) return false;
      ::poll(nullptr, 0, static_cast<int>(std::min(most - waited, kLook).count()));
    }
    return true;
  }
};

SpawnContext::SpawnContext(std::unique_ptr<Job> job) : job_(std::move(job)) {}
SpawnContext::SpawnContext(SpawnContext&&) noexcept = default;
SpawnContext& SpawnContext::operator=(SpawnContext&& other) noexcept {
  if (this != &other) {
    if (job_) terminate();
    job_ = std::move(other.job_);
  }
  return *this;
}
SpawnContext::~SpawnContext() {
  try {
    if (job_) terminate();
  } catch (const Error&) {  // nothing is left to end
  }
}

const std::vector<int>& SpawnContext::pids() const { return job_->pids; }

bool SpawnContext::join(std::optional<milliseconds> timeout) {
  if (timeout ? !job_->wait(*timeout) : !job_->look(0)) return false;
  if (job_->exit_code != 0)
    throw Error("spawn: the job of {} ranks ended with exit code {}; stderr names the rank and its cause", job_->ranks,
                job_->exit_code);
  return true;
}

void SpawnContext::terminate() {
  if (job_->supervisor == 0) return;
  ::kill(job_->supervisor, SIGTERM);
  if (job_->wait(kMostForEnd)) return;
  ::kill(job_->supervisor, SIGKILL);  // the kernel then ends the ranks
  job_->look(0);
}

SpawnContext spawn_ranks(const Run& run, const std::vector<std::string>& args, int nprocs, bool join) {
  if (nprocs < 1) throw InvalidArgument("spawn: got nprocs {}; expected at least 1", nprocs);
  const int call = calls_made++;
  auto job = std::make_unique<SpawnContext::Job>(SpawnContext::Job{.ranks = nprocs});
  if (is_rank(env::text)) {
    run_if_rank(call, run, args, nprocs);
    return SpawnContext(std::move(job));  // another call's rank: this one has ended for the parent
  }
  const std::string variable = variable_of(call, args);
  check_has_one_thread();
  Pipe pids = make_pipe();
  std::fflush(nullptr);  // otherwise the child would write the buffers again
  const pid_t parent = ::getpid();
  job->supervisor = ::fork();
  if (job->supervisor < 0) {
    job->supervisor = 0;
    throw Error("spawn: cannot fork: {}", std::strerror(errno));
  }
  if (job->supervisor == 0) {
    pids.read_end.reset();
    supervise(nprocs, variable, parent, pids.write_end);
  }
  pids.write_end.reset();
  job->pids = read_pids(pids.read_end, nprocs);
  SpawnContext context(std::move(job));
  if (join) context.join();
  return context;
}

}  // namespace lockstep::launch
