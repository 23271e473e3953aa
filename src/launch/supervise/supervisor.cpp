#include "src/launch/supervise/supervisor.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "lockstep/core/error.h"
#include "src/core/process/process_limits.h"

namespace lockstep::launch {

namespace {

using std::chrono::milliseconds;

// The failed rank may exit later than the ranks that notice its loss.
constexpr milliseconds kWaitForCause(500);
// Processes that a rank has started may still be writing (`exec ./train > >(tee log)`); after this time they are
// killed.
constexpr milliseconds kGroupLinger(300);
// After the second signal: time for written output to reach a reader that does read.
constexpr milliseconds kLastWrites(300);
constexpr int kTickMs = 10;
constexpr int kNodesTickMs = 100;
constexpr int kLongestSleepMs = 10'000;

std::vector<pid_t> groups_of(const std::vector<RankProcess>& processes) {
  std::vector<pid_t> groups;
  for (const RankProcess& process : processes) groups.push_back(process.pid);
  return groups;
}

}  // namespace

Supervisor::Supervisor(const SupervisorOptions& options, std::vector<RankProcess> processes, const Guard& guard,
                       SignalGate& signals, NodeLink* nodes)
    : options_(options),
      guard_(guard),
      signals_(signals),
      nodes_(nodes),
      output_(options.output, processes),
      busy_cores_(options.cores, groups_of(processes), Clock::now()) {
  memory_kills_.note(out_of_memory_kills(), Clock::now());
  for (const RankProcess& process : processes)
    ranks_.push_back({process.rank, process.pid, process.task, process.may_fail});
}

Supervisor::~Supervisor() {
  signal_groups(SIGKILL);
  for (Rank& rank : ranks_) {
    if (rank.is_reaped) continue;
    guard_.forget(rank.pid);
    while (::waitpid(rank.pid, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
}

int Supervisor::run() {
  while (!has_given_up() && (!finished() || (nodes_ != nullptr && !nodes_->may_leave()))) {
    wait();
    handle_signals();
    collect_exits();
    check_outputs();
    decide_exits();
    kill_when_due();
    for (std::size_t place = 0; place < ranks_.size(); ++place) clear_up(place);
    follow_nodes();
    if (const auto due = memory_kills_.due(); due && Clock::now() >= *due)
      memory_kills_.note(out_of_memory_kills(), Clock::now());
    if (exits_.empty())
      if (const std::string text = busy_cores_.look(Clock::now()); !text.empty()) output_.say(text);
  }
  return conclude();
}

bool Supervisor::finished() const {
  for (std::size_t place = 0; place < ranks_.size(); ++place)
    if (!ranks_[place].is_reaped || output_.is_open(place)) return false;
  return true;
}

// The second signal ends the wait for nodes, and for a reader that has stopped.
bool Supervisor::has_given_up() const {
  if (interrupts_ < 2 || !std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.is_reaped; }))
    return false;
  return finished() || Clock::now() >= *give_up_at_;
}

int Supervisor::longest_sleep_ms() const {
  const auto until = [](Clock::time_point due) {
    return static_cast<int>(
        std::clamp<std::int64_t>(std::chrono::ceil<milliseconds>(due - Clock::now()).count(), 0, kLongestSleepMs));
  };
  if (ending_ || (!exits_.empty() && !finished())) return kTickMs;
  int sleep_ms = -1;
  const auto no_longer_than = [&sleep_ms](int ms) { sleep_ms = sleep_ms < 0 ? ms : std::min(sleep_ms, ms); };
  if (nodes_ != nullptr && nodes_->needs_clock()) no_longer_than(kNodesTickMs);
  for (const auto& due : {output_.due(), memory_kills_.due(), exits_.empty() ? busy_cores_.due() : std::nullopt})
    if (due) no_longer_than(until(*due));
  return sleep_ms;
}

// Sleeps until an event, then moves output; signals and exits are handled elsewhere.
void Supervisor::wait() {
  std::vector<pollfd> polled = {{signals_.fd(), POLLIN, 0}};
  output_.add_descriptors(polled);
  if (nodes_ != nullptr) nodes_->add_descriptors(polled);
  if (::poll(polled.data(), polled.size(), longest_sleep_ms()) < 0) polled.clear();
  output_.move(polled);
}

void Supervisor::handle_signals() {
  while (const int signal = signals_.next()) handle(signal);
}

void Supervisor::handle(int signal) {
  if (signal == SIGCHLD) return;
  if (signal == SIGTSTP) return pause_job();
  if (signal == SIGUSR1) return ask_for_flight_records();
  if (!ends_job(signal)) return pass_on(signal);
  const bool first = ++interrupts_ == 1;
  if (!first && !give_up_at_) give_up_at_ = Clock::now() + kLastWrites;
  const std::string place = nodes_ == nullptr ? "" : " to " + where(nodes_->own());
  begin_ending(signal, 128 + signal, Clock::now() + (first ? options_.interrupt_grace : milliseconds(0)),
               fmt::format("lockrun: {}{}: ended all ranks\n", name_of_signal(signal), place));
  report_to_nodes(NodeReport::Kind::kInterrupted, signal);
}

void Supervisor::ask_for_flight_records() {
  int asked = 0;
  for (const Rank& rank : ranks_)
    if (!rank.ended && signal_group_where_caught(rank.pid, SIGUSR1) > 0) ++asked;
  output_.say(
      fmt::format("lockrun: SIGUSR1: requested the flight records of {} of {} ranks here\n", asked, ranks_.size()));
}

// Passes on a signal that a scheduler sends as a notice, and that would end a process without a handler for it.
void Supervisor::pass_on(int signal) {
  std::vector<int> without;
  for (const Rank& rank : ranks_)
    if (!rank.ended && signal_group_where_caught(rank.pid, signal) == 0) without.push_back(rank.rank);
  output_.say(fmt::format(
      "lockrun: {}: passed on to the ranks{}\n", name_of_signal(signal),
      without.empty() ? ""
                      : fmt::format(", but not to {}: a rank without a handler for it would end", ranges_of(without))));
}

// Ctrl-Z: the ranks have their own process groups, so the terminal does not stop them.
void Supervisor::pause_job() {
  signal_groups(SIGSTOP);
  ::raise(SIGSTOP);
  signal_groups(SIGCONT);
}

// Looks without reaping: while the leader is a zombie, no other process can get its number.
void Supervisor::collect_exits() {
  for (Rank& rank : ranks_) {
    if (rank.ended) continue;
    siginfo_t info{};
    if (::waitid(P_PID, static_cast<id_t>(rank.pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0)
      continue;
    rank.ended = Clock::now();
    exits_.push_back({rank.rank, rank.pid, info.si_code != CLD_EXITED, info.si_status, info.si_code == CLD_DUMPED,
                      *rank.ended, rank.task, rank.may_fail});
  }
}

int Supervisor::workers() const {
  return static_cast<int>(std::count_if(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.may_fail; }));
}

void Supervisor::decide_exits() {
  if (ending_) return;
  const Decision decision = decide(exits_, static_cast<int>(ranks_.size()), Clock::now(), kWaitForCause, workers());
  if (decision.action != Decision::Action::kEndJob) return report_allowed_failures();
  failure_ = decision;
  output_.expect_last_words();
  const auto first = std::find_if(exits_.begin(), exits_.end(), [](const RankExit& exit) { return exit.failed(); });
  const auto kills = memory_kills_.recent(out_of_memory_kills(), Clock::now());
  memory_ran_out_ = kills && kills->count > 0;
  begin_ending(SIGTERM, exits_[decision.cause].exit_code(), first->when + options_.grace,
               failure_cause(exits_, decision, nodes_ == nullptr ? "" : where(nodes_->own()), kills));
  report_to_nodes(decision.only_consequences ? NodeReport::Kind::kConsequence : NodeReport::Kind::kFailed, SIGTERM);
}

// A worker that has only lost a peer is reported when the cause, a server's failure, would have been seen.
void Supervisor::report_allowed_failures() {
  for (; reported_ < exits_.size(); ++reported_) {
    const RankExit& exit = exits_[reported_];
    if (!exit.failed() || !exit.may_fail) continue;
    if (exit.is_consequence() && Clock::now() < exit.when + kWaitForCause) return;
    const std::vector<RankExit> so_far(exits_.begin(), exits_.begin() + static_cast<std::ptrdiff_t>(reported_) + 1);
    output_.say(allowed_failure(exit, workers() - failed_workers(so_far), workers()));
  }
}

// The reader has gone, or the disk is full. No output may be lost silently, so the job ends as any writer would.
void Supervisor::check_outputs() {
  if (ending_ || output_.error() == 0) return;
  const Ending ending = output_failure(Clock::now() + options_.grace);
  begin_ending(SIGTERM, ending.exit_code, ending.kill_at, ending.message);
  report_to_nodes(NodeReport::Kind::kLost, SIGTERM);
}

Supervisor::Ending Supervisor::output_failure(Clock::time_point kill_at) const {
  const int error = output_.error();
  const std::string place = nodes_ == nullptr ? "" : ", on " + where(nodes_->own());
  const bool is_silent = error == EPIPE && nodes_ == nullptr;
  return {error == EPIPE ? 128 + SIGPIPE : 1, kill_at, false,
          is_silent ? "" : fmt::format("lockrun: cannot write the ranks' output{}: {}\n", place, std::strerror(error))};
}

void Supervisor::begin_ending(int signal, int exit_code, Clock::time_point kill_at, std::string message) {
  signal_groups(signal);
  signal_groups(SIGCONT);  // a stopped process would not receive it
  if (!ending_) ending_ = Ending{exit_code, kill_at, false, std::move(message)};
  ending_->kill_at = std::min(ending_->kill_at, kill_at);
}

// Reports that this node's part of the job has ended, or will: the first end on any node decides for all.
void Supervisor::report_to_nodes(NodeReport::Kind kind, int signal) {
  if (nodes_ == nullptr) return;
  NodeReport report;
  report.kind = kind;
  report.signal = signal;
  if (ending_) report.exit_code = ending_->exit_code, report.cause = ending_->message;
  if (kind == NodeReport::Kind::kFinished) report.exit_code = exit_code();
  if (failure_ && options_.describe) options_.describe(report, exits_, *failure_, memory_ran_out_);
  has_reported_end_ = true;
  nodes_->report(std::move(report));
}

void Supervisor::follow_nodes() {
  if (nodes_ == nullptr) return;
  if (finished() && !ending_ && !has_reported_end_) report_to_nodes(NodeReport::Kind::kFinished, 0);
  nodes_->move();
  const auto& decision = nodes_->decision();
  if (!decision || decision->kind == NodeReport::Kind::kFinished) return;
  const bool is_gentle = decision->kind == NodeReport::Kind::kInterrupted;
  const bool is_about_this_node = decision->node == nodes_->own().node;  // it was stopped for some time, and given up
  if (!ending_)
    begin_ending(decision->signal, decision->exit_code,
                 Clock::now() + (is_gentle ? options_.interrupt_grace : options_.grace),
                 is_about_this_node ? decision->cause : "");
  ending_->exit_code = decision->exit_code;
}

void Supervisor::kill_when_due() {
  if (!ending_ || ending_->killed || Clock::now() < ending_->kill_at) return;
  ending_->killed = true;
  signal_groups(SIGKILL);
}

// Cleans up after a rank that has ended: lets the processes that it started finish writing, kills its group, reaps it,
// and closes its streams. Time in which nobody reads our output, so that we do not read theirs, does not count; but
// once all groups are killed there is nothing left to wait for.
void Supervisor::clear_up(std::size_t place) {
  Rank& rank = ranks_[place];
  if (!rank.ended) return;
  const Clock::time_point now = Clock::now();
  if (!output_.is_held_back(place)) rank.lingered += now - std::max(rank.looked, *rank.ended);
  rank.looked = now;
  const bool has_lingered = rank.lingered >= kGroupLinger;
  if (!rank.is_reaped) {
    const bool is_over = ending_ ? now >= ending_->kill_at : has_lingered;
    if (!output_.is_open(place) || is_over) reap(rank);
  } else if (has_lingered && output_.is_open(place)) {
    output_.close_when_read(place);  // a process that left the group on purpose may hold the streams forever
  }
}

void Supervisor::reap(Rank& rank) {
  ::kill(-rank.pid, SIGKILL);
  guard_.forget(rank.pid);
  while (::waitpid(rank.pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  rank.is_reaped = true;
  rank.lingered = {};
}

void Supervisor::signal_groups(int signal) const {
  for (const Rank& rank : ranks_)
    if (!rank.is_reaped) ::kill(-rank.pid, signal);
}

// The message for the user when the job has failed: the same cause on all nodes, and the rank's last lines on its node.
std::string Supervisor::blame() const {
  const bool has_decision =
      nodes_ != nullptr && nodes_->decision() && nodes_->decision()->kind != NodeReport::Kind::kFinished;
  std::string text;
  if (has_decision && nodes_->decision()->node != nodes_->own().node) {
    text = describe_decision(*nodes_->decision(), nodes_->facts_of(nodes_->decision()->node));
    // The coordinator, which should have decided, is lost: this failure may be the cause all the same.
    const bool may_be_cause =
        nodes_->decision()->kind == NodeReport::Kind::kLost && failure_ && !failure_->only_consequences;
    if (!may_be_cause) return text;
  }
  if (!ending_ || !failure_) return ending_ ? ending_->message : "";
  return text + ending_->message + failure_details(last_lines_of_cause());
}

std::vector<std::string> Supervisor::last_lines_of_cause() const {
  return failure_ ? output_.last_errors(static_cast<std::size_t>(exits_[failure_->cause].rank - ranks_.front().rank))
                  : std::vector<std::string>();
}

// At the end of a job that has not failed: its workers that have.
std::string Supervisor::allowed_failures() const {
  std::string text;
  for (const RankExit& exit : exits_) {
    if (ending_ || !exit.failed()) continue;
    if (text.empty())
      text = fmt::format("lockrun: {} of {} workers failed, which --allow-worker-failures allows:\n",
                         failed_workers(exits_), workers());
    text += failure_cause(exits_, {.cause = static_cast<std::size_t>(&exit - exits_.data())}) +
            failure_details(output_.last_errors(static_cast<std::size_t>(exit.rank - ranks_.front().rank)));
  }
  return text;
}

// The job has ended, and the nodes' sockets do not matter any more; only the reader and signals do.
void Supervisor::await_reader() {
  std::optional<Clock::time_point> give_up_at;
  while (!output_.is_empty()) {
    if (interrupts_ >= 2 && !give_up_at) give_up_at = Clock::now() + kLastWrites;
    if (give_up_at && Clock::now() >= *give_up_at) return output_.give_up();
    std::vector<pollfd> polled = {{signals_.fd(), POLLIN, 0}};
    output_.add_descriptors(polled);
    if (::poll(polled.data(), polled.size(), give_up_at ? kTickMs : -1) < 0) polled.clear();
    output_.move(polled);
    handle_signals();
  }
}

// Ranks that save and leave on request are no failure, and those that lose them have saved as well.
int Supervisor::exit_code() const {
  const auto has_left = [](const RankExit& exit) { return exit.is_preempted(); };
  const auto is_well = [](const RankExit& exit) { return !exit.failed() || exit.is_consequence(); };
  const bool is_preempted = std::any_of(exits_.begin(), exits_.end(), has_left) && exits_.size() == ranks_.size() &&
                            std::all_of(exits_.begin(), exits_.end(), is_well);
  if (is_preempted) return kPreemptedExitCode;
  if (!ending_ && nodes_ != nullptr && nodes_->decision()) return nodes_->decision()->exit_code;
  return ending_ ? ending_->exit_code : 0;
}

int Supervisor::conclude() {
  const std::string message = blame() + allowed_failures();
  output_.finish();
  if (!message.empty()) output_.say(message);
  await_reader();
  if (ending_ || output_.error() == 0) return exit_code();
  ending_ = output_failure(Clock::now());  // only the last writes have reported it
  if (!ending_->message.empty()) output_.say(ending_->message);
  await_reader();
  return ending_->exit_code;
}

}  // namespace lockstep::launch
