#include "lockstep/launch/launch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>

#include "lockstep/comm/bootstrap.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "src/core/base/known_variables.h"
#include "src/launch/attempts/attempts.h"
#include "src/launch/launchers/spawned_job.h"

namespace lockstep::launch {

namespace {

// The launcher's own descriptors must not become a rank's standard output.
void open_missing_standard_descriptors() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(fd, F_GETFD) == -1 && ::open("/dev/null", O_RDWR) != fd)
      throw Error("launch: cannot open /dev/null: {}", std::strerror(errno));
}

// The user's token, read in the same way as in the ranks; or empty.
std::string users_token() {
  const auto lookup = [](const char* name) -> std::optional<std::string> {
    if (std::strcmp(name, env::kToken) == 0 || std::strcmp(name, env::kTokenFile) == 0) return env::text(name);
    if (std::strcmp(name, env::kRank) == 0) return "0";
    if (std::strcmp(name, env::kWorldSize) == 0) return "1";
    return std::nullopt;
  };
  return read_job_environment(lookup).token;
}

void check_worker_failures(const LaunchSpec& spec) {
  if (!spec.allow_worker_failures) return;
  if (spec.servers == 0)
    throw InvalidArgument(
        "--allow-worker-failures: this job has no parameter servers: without --ps P --workers W each rank needs all "
        "others, and the first failure ends the job");
  if (spec.nodes > 1)
    throw InvalidArgument(
        "--allow-worker-failures: the job has {} nodes, and the loss of a node ends a job: start it on one node, or "
        "without this flag",
        spec.nodes);
}

int run_job(const LaunchSpec& asked, const RankProgram& program) {
  open_missing_standard_descriptors();
  for (const std::string& doubt : env::doubts_about_environment()) fmt::print(stderr, "lockrun: {}\n", doubt);
  const DeviceFacts devices = look_for_devices(asked);
  LaunchSpec spec = asked;
  spec.ranks = count_ranks(asked, devices);
  if (spec.ranks < 1) throw InvalidArgument("launch: got {} ranks; expected at least 1", spec.ranks);
  if ((spec.servers > 0) != (spec.workers > 0) || spec.servers < 0 || spec.workers < 0)
    throw InvalidArgument(
        "launch: {} servers and {} workers; a parameter server's job has at least one of each, any other job none",
        spec.servers, spec.workers);
  if (spec.max_restarts < 0)
    throw InvalidArgument("launch: max_restarts {} is negative; 0 means that the job is not restarted",
                          spec.max_restarts);
  check_worker_failures(spec);
  return run_attempts(spec, program, devices, users_token());
}

// The command line of this process. It does not show changes that the program made to argv.
RankProgram this_program() {
  RankProgram program;
  std::error_code failure;
  program.file = std::filesystem::read_symlink("/proc/self/exe", failure);
  std::ifstream words("/proc/self/cmdline", std::ios::binary);
  for (std::string word; std::getline(words, word, '\0');) program.arguments.push_back(word);
  if (program.file.empty() || program.arguments.empty())
    throw Error("spawn: cannot find this program to start it again: /proc/self: {}",
                failure ? failure.message() : "it has no cmdline");
  return program;
}

// A global, since run_main takes a plain function; a process has one main.
const std::function<int(int, char**)>* rank_main = nullptr;

int run_as_rank(int argc, char** argv, const std::function<int(int, char**)>& fn) {
  rank_main = &fn;
  return run_main(
      argv[0], [](int count, char** values) { return (*rank_main)(count, values); }, argc, argv);
}

}  // namespace

int launch(const LaunchSpec& spec) {
  if (spec.command.empty()) throw InvalidArgument("launch: the command is empty; it must name a program");
  return run_job(spec, {spec.command[0], spec.command});
}

int run_spawned_job(int ranks, const std::vector<EnvironmentChange>& environment,
                    const std::function<void(const std::vector<int>& pids)>& started) {
  LaunchSpec spec;
  spec.ranks = ranks;
  spec.prefix = false;
  RankProgram program = this_program();
  program.environment = environment;
  program.started = started;
  return run_job(spec, program);
}

int spawn(int n, int argc, char** argv, const std::function<int(int argc, char** argv)>& fn) {
  if (is_rank(env::text)) return run_as_rank(argc, argv, fn);
  LaunchSpec spec;
  spec.ranks = n;
  spec.prefix = false;
  // A fork is not enough: OpenMP reads OMP_NUM_THREADS when it is loaded.
  return run_job(spec, this_program());
}

}  // namespace lockstep::launch
