#include "lockstep/launch/launch.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <system_error>

#include "lockstep/comm/bootstrap.h"
#include "lockstep/comm/store.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "src/comm/net/socket.h"
#include "src/comm/net/token.h"
#include "src/core/base/known_variables.h"
#include "src/launch/launchers/spawned_job.h"
#include "src/launch/nodes/node_link.h"
#include "src/launch/supervise/guard.h"
#include "src/launch/supervise/process.h"
#include "src/launch/supervise/rank_environment.h"
#include "src/launch/supervise/signals.h"
#include "src/launch/supervise/supervisor.h"
#include "src/launch/topology/cores.h"
#include "src/launch/topology/device_plan.h"

namespace lockstep::launch {

namespace {

constexpr int kNotExecutable = 126, kNotFound = 127;  // as in a shell
constexpr int kFailed = 1, kWrongUse = 2;             // as run_main

// The launcher's own descriptors must not become a rank's standard output.
void open_missing_standard_descriptors() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(fd, F_GETFD) == -1 && ::open("/dev/null", O_RDWR) != fd)
      throw Error("launch: cannot open /dev/null: {}", std::strerror(errno));
}

// The store's socket, bound and listening before any rank exists: its port is known, and no rank can connect too early.
struct Listener {
  Fd fd;  // invalid: another node's launcher has it
  Endpoint endpoint;
};

Listener listen_on_loopback() {
  Listener listener{listen_tcp("127.0.0.1", 0), {}};
  listener.endpoint = local_endpoint(listener.fd.get());
  return listener;
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

std::optional<int> output_width() {
  if (::isatty(STDOUT_FILENO) == 0 || is_rank(env::text))
    return std::nullopt;  // an outer launcher may give us a terminal that nobody looks at
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

// The exit code and message for a rank that could not become its program.
NodeReport report_of(const StartFailure& failure, const std::string& program, const std::string& place) {
  NodeReport report;
  report.kind = NodeReport::Kind::kLost;
  report.signal = SIGTERM;
  report.exit_code = 1;
  const auto say = [&](const std::string& what) { report.cause = fmt::format("lockrun: {}{}\n", what, place); };
  if (std::strcmp(failure.step, "exec") != 0) {
    const bool is_binding = std::strcmp(failure.step, "sched_setaffinity") == 0;
    say(fmt::format(
        "cannot set up rank {}: {}: {}{}", failure.rank, failure.step, std::strerror(failure.error),
        is_binding
            ? ": this system (a container's seccomp profile, a sandbox) does not let it choose its cores; lockrun "
              "--no-bind does not bind ranks"
            : ""));
    return report;
  }
  report.exit_code = failure.error == ENOENT ? kNotFound : kNotExecutable;
  const bool has_path = program.find('/') != std::string::npos;
  const bool exists = ::access(program.c_str(), F_OK) == 0;
  if (failure.error == ENOENT && has_path && exists)
    say(fmt::format("cannot run '{}': the interpreter or loader that it names does not exist", program));
  else if (failure.error == ENOENT && has_path)
    say(fmt::format("cannot run '{}': no such file", program));
  else if (failure.error == ENOENT)
    say(fmt::format("cannot run '{}': not found in PATH{}", program,
                    exists ? fmt::format("; did you mean ./{} ?", program) : ""));
  else
    say(fmt::format("cannot run '{}': {}", program, std::strerror(failure.error)));
  return report;
}

// Starts the ranks one after the other, in an order with these guarantees: signals are caught and the guard is running
// before the first rank, and the store's thread starts only after the last fork. If there are several nodes, they have
// joined before.
class Job {
 public:
  Job(const LaunchSpec& spec, const RankProgram& program, const DeviceFacts& devices, std::string token,
      std::unique_ptr<NodeLink> nodes)
      : spec_(spec),
        program_(program),
        devices_(devices),
        nodes_(std::move(nodes)),
        listener_(nodes_ ? Listener{nodes_->take_listener(), nodes_->store()} : listen_on_loopback()),
        failures_(make_pipe()),
        token_(std::move(token)) {
    facts_.ranks = facts_.world_size = spec.ranks;
    facts_.master_host = listener_.endpoint.host;
    facts_.store_port = listener_.endpoint.port;
    facts_.master_port = nodes_                  ? nodes_->facts_of(0).program_port
                         : spec.master_port != 0 ? spec.master_port
                                                 : free_port();
    facts_.terminal_width = output_width();
    facts_.has_terminals = spec.terminals;
    facts_.flight_dir = spec.flight_dir;
    facts_.tasks = {spec.servers, spec.workers};
    if (nodes_) {
      const NodePlace place = place_of(nodes_->nodes(), spec.node_rank);
      facts_.world_size = place.world_size;
      facts_.first_rank = place.first_rank;
      facts_.node = spec.node_rank;
      facts_.nodes = spec.nodes;
    } else if (token_.empty()) {
      facts_.fresh_token = token_ = fresh_token();
    }
  }

  int run() {
    try {
      return run_ranks();
    } catch (const InvalidArgument& error) {
      if (nodes_) report_to_nodes(error.what(), kWrongUse);
      throw;
    } catch (const std::exception& error) {
      if (nodes_) report_to_nodes(error.what(), kFailed);
      throw;
    }
  }

 private:
  int run_ranks() {
    const TaskCounts& tasks = facts_.tasks;
    if (tasks.any() && tasks.servers + tasks.workers != facts_.world_size)
      throw InvalidArgument(
          "--ps {} --workers {} are {} ranks, and {} nodes have {}: -n says how many of them run on each",
          tasks.servers, tasks.workers, tasks.servers + tasks.workers, facts_.nodes, facts_.world_size);
    const int servers = tasks.servers_among(facts_.first_rank, spec_.ranks);
    plan_ = plan_devices(devices_, {spec_.ranks, facts_.first_rank, env::text(env::kGpuMemory), servers});
    facts_.threads = plan_.threads;
    for (const std::string& line : plan_.remarks) fmt::print(stderr, "lockrun: {}\n", line);
    std::optional<Supervisor> supervisor(std::in_place, supervisor_options(), start_ranks(), guard_, signals_,
                                         nodes_.get());
    if (const auto failure = await_start(failures_.read_end)) {
      supervisor.reset();  // ends the ranks that have started
      return give_up(*failure);
    }
    std::optional<StoreServer> server;
    if (listener_.fd) {
      StoreServerOptions store;
      store.listen_fd = listener_.fd.release();
      store.token = token_;
      store.insecure = env::integer(env::kInsecure, 0, 1).value_or(0) == 1;
      server.emplace(store);
    }
    return supervisor->run();
  }

  // Reports that this lockrun cannot continue and its ranks are gone, so that the other nodes know the cause.
  void report_to_nodes(const char* why, int exit_code) {
    NodeReport report;
    report.kind = NodeReport::Kind::kLost;
    report.signal = SIGTERM;
    report.exit_code = exit_code;
    report.cause = fmt::format("lockrun: {}: {}\n", where(nodes_->own()), why);
    nodes_->report(std::move(report));
    nodes_->part();
  }

  int give_up(const StartFailure& failure) {
    const NodeReport report = report_of(failure, program_.file, nodes_ ? ", on " + where(nodes_->own()) : "");
    if (nodes_) {
      nodes_->report(report);
      nodes_->part();
    }
    const NodeReport& decision = nodes_ ? *nodes_->decision() : report;
    fmt::print(stderr, "{}", nodes_ ? describe_decision(decision, nodes_->facts_of(decision.node)) : decision.cause);
    return decision.exit_code;
  }

  std::vector<RankProcess> start_ranks() {
    std::vector<RankProcess> started;
    try {
      start_ranks(started);
    } catch (...) {
      for (const RankProcess& process : started) ::kill(-process.pid, SIGKILL);
      for (const RankProcess& process : started) ::waitpid(process.pid, nullptr, 0);
      throw;
    }
    failures_.write_end.reset();
    if (program_.started) {
      std::vector<int> pids;
      for (const RankProcess& process : started) pids.push_back(process.pid);
      program_.started(pids);
    }
    return started;
  }

  void start_ranks(std::vector<RankProcess>& started) {
    const bool terminal = ::isatty(STDIN_FILENO) != 0;
    for (int local = 0; local < spec_.ranks; ++local) {
      const int rank = facts_.first_rank + local;
      const auto place = static_cast<std::size_t>(local);
      RankSetup setup{rank, rank_environment(facts_, local, env::text), plan_.cores[place], rank == 0 && !terminal,
                      plan_.memory_nodes[place]};
      setup.has_terminal = spec_.terminals;
      setup.columns = facts_.terminal_width.value_or(0);
      setup.environment.insert(setup.environment.end(), plan_.environment[place].begin(),
                               plan_.environment[place].end());
      setup.environment.insert(setup.environment.end(), program_.environment.begin(), program_.environment.end());
      started.push_back(start_rank(setup, program_, guard_, signals_, failures_.write_end.get()));
      started.back().task = facts_.tasks.name_of(rank);
      started.back().may_fail = spec_.allow_worker_failures && !facts_.tasks.is_server(rank);
    }
  }

  SupervisorOptions supervisor_options() const {
    SupervisorOptions options;
    options.output = {spec_.prefix, spec_.fold, facts_.terminal_width.has_value()};
    for (const std::vector<int>& cores : plan_.cores)
      options.cores.insert(options.cores.end(), cores.begin(), cores.end());
    if (options.cores.empty()) options.cores = inherited_cores();
    options.grace = spec_.grace;
    options.interrupt_grace = spec_.interrupt_grace;
    return options;
  }

  const LaunchSpec& spec_;
  const RankProgram& program_;
  const DeviceFacts& devices_;
  SignalGate signals_;
  Guard guard_;                      // forked first, so that it inherits nothing of the others
  std::unique_ptr<NodeLink> nodes_;  // null: there is only this node
  Listener listener_;
  Pipe failures_;
  DevicePlan plan_;
  std::string token_;
  JobFacts facts_;
};

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
  check_worker_failures(spec);
  std::string token = users_token();
  std::unique_ptr<NodeLink> nodes = spec.nodes > 1 ? join_nodes(spec, token) : nullptr;
  return Job(spec, program, devices, std::move(token), std::move(nodes)).run();
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
