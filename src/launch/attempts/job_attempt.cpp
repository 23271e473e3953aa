#include "src/launch/attempts/job_attempt.h"

#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "lockstep/comm/bootstrap.h"
#include "lockstep/comm/store.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "src/comm/net/socket.h"
#include "src/comm/net/token.h"
#include "src/comm/rendezvous/attempt_key.h"
#include "src/launch/supervise/process.h"
#include "src/launch/supervise/supervisor.h"
#include "src/launch/topology/cores.h"

namespace lockstep::launch {

namespace {

constexpr int kNotExecutable = 126, kNotFound = 127;  // as in a shell
constexpr int kEndedByError = 1, kWronglyUsed = 2;    // as run_main

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

Attempt::End end_by(int exit_code, bool is_interrupted, bool has_failure) {
  if (exit_code == 0) return Attempt::End::kFinished;
  if (exit_code == kPreemptedExitCode) return Attempt::End::kPreempted;
  if (is_interrupted) return Attempt::End::kInterrupted;
  return has_failure ? Attempt::End::kFailed : Attempt::End::kNotStarted;
}

// The guard is forked first, so that it inherits nothing of the job; signals are caught before.
SignalGate& gate_of(JobBase& base) { return base.signals ? *base.signals : base.signals.emplace(); }
Guard& guard_of(JobBase& base) { return base.guard ? *base.guard : base.guard.emplace(); }

}  // namespace

JobAttempt::JobAttempt(JobBase& base, int attempt, std::unique_ptr<NodeLink> nodes)
    : base_(base),
      spec_(base.spec),
      signals_(gate_of(base)),
      guard_(guard_of(base)),
      progress_(base.spec.ranks),
      nodes_(std::move(nodes)),
      failures_(make_pipe()) {
  if (nodes_) {
    listener_ = nodes_->take_listener();
  } else {
    if (!base.ports.listener) base.ports.listener = listen_tcp("127.0.0.1", 0);
    listener_ = copy_of(base.ports.listener);
  }
  const Endpoint store = nodes_ ? nodes_->store() : local_endpoint(listener_.get());
  if (!nodes_ && base.ports.program == 0) base.ports.program = spec_.master_port != 0 ? spec_.master_port : free_port();
  facts_.ranks = facts_.world_size = spec_.ranks;
  facts_.master_host = store.host;
  facts_.store_port = store.port;
  facts_.master_port = nodes_ ? nodes_->facts_of(0).program_port : base.ports.program;
  facts_.fresh_token = base.fresh_token;
  facts_.terminal_width = output_width();
  facts_.has_terminals = spec_.terminals;
  facts_.flight_dir = spec_.flight_dir;
  facts_.tasks = {spec_.servers, spec_.workers};
  facts_.attempt = attempt;
  facts_.max_restarts = spec_.max_restarts;
  facts_.attempt_id = nodes_ ? nodes_->attempt_id() : fresh_token();
  if (!nodes_) return;
  const NodePlace place = place_of(nodes_->nodes(), spec_.node_rank);
  facts_.world_size = place.world_size;
  facts_.first_rank = place.first_rank;
  facts_.node = spec_.node_rank;
  facts_.nodes = spec_.nodes;
  nodes_->judge_by([this](NodeReport& decision) { judge(decision); });
}

// Node 0's decision for all nodes.
void JobAttempt::judge(NodeReport& decision) {
  Attempt ended;
  ended.number = facts_.attempt;
  ended.exit_code = decision.exit_code;
  ended.failure = decision.failure;
  ended.step = decision.step;
  ended.saved_step = saved_step();
  const bool is_interrupted = decision.kind == NodeReport::Kind::kInterrupted;
  ended.end = end_by(decision.exit_code, is_interrupted, decision.failure.has_value());
  const RestartPolicy::Answer answer = base_.policy.judge(ended);
  decision.restarts = answer.restarts;
  decision.pause_s = static_cast<int>(answer.pause.count());
  decision.why_no_restart = answer.why_not;
}

JobEnd JobAttempt::run() {
  try {
    return run_ranks();
  } catch (const InvalidArgument& error) {
    if (nodes_) report_to_nodes(error.what(), kWronglyUsed);
    throw;
  } catch (const std::exception& error) {
    if (nodes_) report_to_nodes(error.what(), kEndedByError);
    throw;
  }
}

JobEnd JobAttempt::run_ranks() {
  Attempt attempt;
  attempt.number = facts_.attempt;
  attempt.began = std::chrono::system_clock::now();
  const TaskCounts& tasks = facts_.tasks;
  if (tasks.any() && tasks.servers + tasks.workers != facts_.world_size)
    throw InvalidArgument(
        "--ps {} --workers {} are {} ranks, and {} nodes have {}: -n says how many of them run on each", tasks.servers,
        tasks.workers, tasks.servers + tasks.workers, facts_.nodes, facts_.world_size);
  const int servers = tasks.servers_among(facts_.first_rank, spec_.ranks);
  plan_ = plan_devices(base_.devices, {spec_.ranks, facts_.first_rank, env::text(env::kGpuMemory), servers});
  facts_.threads = plan_.threads;
  for (const std::string& line : plan_.remarks)
    if (facts_.attempt == 0) fmt::print(stderr, "lockrun: {}\n", line);
  std::optional<Supervisor> supervisor(std::in_place, supervisor_options(), start_ranks(), guard_, signals_,
                                       nodes_.get());
  if (const auto failure = await_start(failures_.read_end)) {
    supervisor.reset();  // ends the ranks that have started
    return give_up(*failure);
  }
  std::optional<StoreServer> server;
  if (listener_) {
    StoreServerOptions store;
    store.listen_fd = listener_.release();
    store.token = base_.token;
    store.insecure = env::integer(env::kInsecure, 0, 1).value_or(0) == 1;
    store.values[kAttemptKey] = facts_.attempt_id;
    server.emplace(store);
  }
  attempt.exit_code = supervisor->run();
  return end_of(*supervisor, std::move(attempt));
}

// The facts that are known when the failure is seen; the last lines follow.
FirstFailure JobAttempt::describe(const RankExit& exit, const Decision& decision, bool memory_ran_out) const {
  FirstFailure failure;
  failure.node = facts_.node;
  failure.rank = exit.rank;
  failure.task = exit.task;
  failure.how = decision.only_consequences ? "lost a peer, and no rank failed by itself" : launch::describe(exit);
  failure.exception = progress_.error_of(exit.rank - facts_.first_rank);
  const bool is_sent = exit.by_signal && (exit.value == SIGKILL || ends_job(exit.value)) && !memory_ran_out;
  failure.is_from_outside = is_sent || decision.only_consequences;
  return failure;
}

// nullopt: it has noted nothing.
std::optional<std::int64_t> JobAttempt::step_of(int rank) const {
  const ProgressPage& progress = progress_.of(rank - facts_.first_rank);
  if (progress.writer == 0) return std::nullopt;
  return std::max<std::int64_t>(progress.resumed_step, 0) + progress.optimizer_steps;
}

std::optional<std::int64_t> JobAttempt::saved_step() const {
  std::int64_t saved = ProgressPage::kNone;
  for (int rank = 0; rank < spec_.ranks; ++rank) saved = std::max(saved, progress_.of(rank).saved_step.load());
  return saved == ProgressPage::kNone ? std::nullopt : std::optional(saved);
}

void JobAttempt::describe_attempt(const Supervisor& supervisor, Attempt& attempt) const {
  attempt.saved_step = saved_step();
  std::optional<std::int64_t> furthest;
  for (int local = 0; local < spec_.ranks; ++local) {
    const int rank = facts_.first_rank + local;
    const std::int64_t resumed = progress_.of(local).resumed_step;
    if (resumed != ProgressPage::kNone)
      attempt.resumed_step = std::max(attempt.resumed_step.value_or(resumed), resumed);
    if (facts_.tasks.is_server(rank)) continue;  // counts the steps of all workers
    if (const auto step = step_of(rank)) furthest = std::max(furthest.value_or(*step), *step);
  }
  attempt.step = furthest;
  if (const auto& failure = supervisor.failure()) {
    const RankExit& cause = supervisor.exits()[failure->cause];
    attempt.failure = describe(cause, *failure, supervisor.memory_ran_out());
    attempt.failure->last_lines = supervisor.last_lines_of_cause();
    attempt.step = step_of(cause.rank);
  }
  for (const RankExit& exit : supervisor.exits())
    if (exit.failed() && attempt.failure && exit.rank != attempt.failure->rank)
      attempt.consequences.push_back(exit.rank);
  std::sort(attempt.consequences.begin(), attempt.consequences.end());
}

JobEnd JobAttempt::end_of(const Supervisor& supervisor, Attempt attempt) {
  attempt.ended = std::chrono::system_clock::now();
  describe_attempt(supervisor, attempt);
  const NodeReport* const decision = nodes_ && nodes_->decision() ? &*nodes_->decision() : nullptr;
  if (decision != nullptr && decision->node != facts_.node) {
    attempt.failure = decision->failure;
    attempt.step = decision->step;
  }
  const bool was_interrupted = supervisor.was_interrupted();
  const bool is_interrupted =
      was_interrupted || (decision != nullptr && decision->kind == NodeReport::Kind::kInterrupted);
  attempt.end = end_by(attempt.exit_code, is_interrupted, /*has_failure=*/true);  // the ranks had started
  JobEnd end{std::move(attempt), {}};
  if (decision != nullptr && !nodes_->has_lost_coordinator()) {
    if (facts_.node != 0) static_cast<void>(base_.policy.judge(end.attempt));  // if node 0 is lost later
    end.answer = {decision->restarts, std::chrono::seconds(decision->pause_s),
                  facts_.node == 0 ? decision->why_no_restart : ""};
  } else {  // one node; or node 0 is lost, and this node may wait for its return
    end.answer = base_.policy.judge(end.attempt);
  }
  end.leaves = end.answer.restarts && was_interrupted;
  if (end.leaves) end.answer.restarts = false;
  return end;
}

void JobAttempt::report_to_nodes(const char* why, int exit_code) {
  NodeReport report;
  report.kind = NodeReport::Kind::kLost;
  report.signal = SIGTERM;
  report.exit_code = exit_code;
  report.cause = fmt::format("lockrun: {}: {}\n", where(nodes_->own()), why);
  nodes_->report(std::move(report));
  nodes_->part();
}

JobEnd JobAttempt::give_up(const StartFailure& failure) {
  const NodeReport report = report_of(failure, base_.program.file, nodes_ ? ", on " + where(nodes_->own()) : "");
  if (nodes_) {
    nodes_->report(report);
    nodes_->part();
  }
  const NodeReport& decision = nodes_ ? *nodes_->decision() : report;
  fmt::print(stderr, "{}", nodes_ ? describe_decision(decision, nodes_->facts_of(decision.node)) : decision.cause);
  Attempt attempt;
  attempt.number = facts_.attempt;
  attempt.began = attempt.ended = std::chrono::system_clock::now();
  attempt.end = Attempt::End::kNotStarted;
  attempt.exit_code = decision.exit_code;
  return {attempt, {}};
}

std::vector<RankProcess> JobAttempt::start_ranks() {
  std::vector<RankProcess> started;
  try {
    start_ranks(started);
  } catch (...) {
    for (const RankProcess& process : started) ::kill(-process.pid, SIGKILL);
    for (const RankProcess& process : started) ::waitpid(process.pid, nullptr, 0);
    throw;
  }
  failures_.write_end.reset();
  if (base_.program.started) {
    std::vector<int> pids;
    for (const RankProcess& process : started) pids.push_back(process.pid);
    base_.program.started(pids);
  }
  return started;
}

void JobAttempt::start_ranks(std::vector<RankProcess>& started) {
  const bool terminal = ::isatty(STDIN_FILENO) != 0;
  for (int local = 0; local < spec_.ranks; ++local) {
    const int rank = facts_.first_rank + local;
    const auto place = static_cast<std::size_t>(local);
    RankSetup setup{rank, rank_environment(facts_, local, env::text), plan_.cores[place], rank == 0 && !terminal,
                    plan_.memory_nodes[place]};
    setup.has_terminal = spec_.terminals;
    setup.columns = facts_.terminal_width.value_or(0);
    setup.environment.emplace_back(env::kProgress, progress_.place_of(local));
    setup.environment.insert(setup.environment.end(), plan_.environment[place].begin(), plan_.environment[place].end());
    setup.environment.insert(setup.environment.end(), base_.program.environment.begin(),
                             base_.program.environment.end());
    started.push_back(start_rank(setup, base_.program, guard_, signals_, failures_.write_end.get()));
    started.back().task = facts_.tasks.name_of(rank);
    started.back().may_fail = spec_.allow_worker_failures && !facts_.tasks.is_server(rank);
  }
}

SupervisorOptions JobAttempt::supervisor_options() const {
  SupervisorOptions options;
  options.output = {spec_.prefix, spec_.fold, facts_.terminal_width.has_value()};
  for (const std::vector<int>& cores : plan_.cores)
    options.cores.insert(options.cores.end(), cores.begin(), cores.end());
  if (options.cores.empty()) options.cores = inherited_cores();
  options.grace = spec_.grace;
  options.interrupt_grace = spec_.interrupt_grace;
  options.describe = [this](NodeReport& report, const std::vector<RankExit>& exits, const Decision& failure,
                            bool memory_ran_out) {
    const RankExit& cause = exits[failure.cause];
    report.failure = describe(cause, failure, memory_ran_out);
    report.step = step_of(cause.rank);
  };
  return options;
}

}  // namespace lockstep::launch
