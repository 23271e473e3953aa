#include "src/launch/supervisor.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "src/core/process_limits.h"

namespace lockstep::launch {

namespace {

using std::chrono::milliseconds;

// The rank that failed may exit more slowly than the ranks that notice its loss.
constexpr milliseconds kWaitForCause(500);
// Processes that a rank has started may still be writing (`exec ./train > >(tee log)`); after this time they are killed.
constexpr milliseconds kGroupLinger(300);
constexpr int kTickMs = 10;
constexpr int kNodesTickMs = 100;

CutStyle style_of(const SupervisorOptions& options, const RankProcess& process, bool is_error) {
  CutStyle style;
  if (options.prefix) style.prefix = fmt::format("[{}] ", process.task.empty() ? std::to_string(process.rank) : process.task);
  style.unchanged = !options.prefix;
  style.redraw = options.redraw && process.rank == 0 && !is_error;
  return style;
}

}  // namespace

Supervisor::Supervisor(const SupervisorOptions& options, std::vector<RankProcess> processes, const Guard& guard, SignalGate& signals,
                       NodeLink* nodes)
    : options_(options),
      guard_(guard),
      signals_(signals),
      nodes_(nodes),
      screen_(STDOUT_FILENO, STDERR_FILENO, options.same_terminal),
      memory_kills_before_(out_of_memory_kills()) {
  for (RankProcess& process : processes)
    ranks_.push_back({process.rank,
                      process.pid,
                      {std::move(process.output), LineCutter(style_of(options, process, false))},
                      {std::move(process.errors), LineCutter(style_of(options, process, true))},
                      LastLines(),
                      std::nullopt,
                      std::nullopt,
                      process.task});
}

Supervisor::~Supervisor() {
  signal_groups(SIGKILL);
  for (Rank& rank : ranks_) {
    if (rank.reaped) continue;
    guard_.forget(rank.pid);
    while (::waitpid(rank.pid, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
}

int Supervisor::run() {
  while (!finished() || (nodes_ != nullptr && !nodes_->may_leave() && interrupts_ < 2)) {
    wait();
    handle_signals();
    collect_exits();
    check_outputs();
    judge_exits();
    kill_when_due();
    for (Rank& rank : ranks_) clear_up(rank);
    follow_nodes();
  }
  return conclude();
}

bool Supervisor::finished() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.reaped && !rank.output.fd && !rank.errors.fd; });
}

int Supervisor::longest_sleep_ms() const {
  if (ending_ || (!exits_.empty() && !finished())) return kTickMs;
  return nodes_ != nullptr && nodes_->needs_clock() ? kNodesTickMs : -1;
}

// Sleeps until something happens, moves output, and leaves signals and exits to the others.
void Supervisor::wait() {
  std::vector<pollfd> polled = {{signals_.fd(), POLLIN, 0}};
  for (OutputQueue* queue : {&screen_.output(), &screen_.errors()})
    if (!queue->empty()) polled.push_back({queue->fd(), POLLOUT, 0});
  const auto each_stream = [this](auto&& visit) {
    for (Rank& rank : ranks_)
      for (const bool is_error : {false, true}) {
        const Fd& fd = (is_error ? rank.errors : rank.output).fd;
        if (fd && !screen_.queue(is_error).full()) visit(rank, is_error, fd.get());
      }
  };
  each_stream([&](Rank&, bool, int fd) { polled.push_back({fd, POLLIN, 0}); });
  if (nodes_ != nullptr) nodes_->add_descriptors(polled);
  if (::poll(polled.data(), polled.size(), longest_sleep_ms()) <= 0) return;
  const auto ready = [&](int fd) {
    return std::any_of(polled.begin(), polled.end(), [fd](const pollfd& entry) { return entry.fd == fd && entry.revents != 0; });
  };
  each_stream([&](Rank& rank, bool is_error, int fd) {
    if (ready(fd)) read_stream(rank, is_error);
  });
  for (OutputQueue* queue : {&screen_.output(), &screen_.errors()})
    if (!queue->empty() && ready(queue->fd())) queue->write_some();
}

void Supervisor::read_stream(Rank& rank, bool is_error) {
  std::array<char, 1 << 16> bytes;
  Stream& stream = is_error ? rank.errors : rank.output;
  const ssize_t got = ::read(stream.fd.get(), bytes.data(), bytes.size());
  if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (got <= 0) return finish_stream(rank, is_error);
  const std::string_view text(bytes.data(), static_cast<std::size_t>(got));
  if (is_error) rank.last_errors.feed(text);
  for (const Piece& piece : stream.cutter.feed(text)) screen_.show(piece, is_error);
}

void Supervisor::finish_stream(Rank& rank, bool is_error) {
  Stream& stream = is_error ? rank.errors : rank.output;
  if (!stream.fd) return;
  stream.fd.reset();
  for (const Piece& piece : stream.cutter.finish()) screen_.show(piece, is_error);
}

void Supervisor::handle_signals() {
  while (const int signal = signals_.next()) {
    if (signal == SIGCHLD) continue;
    if (signal == SIGTSTP) {
      pause_job();
      continue;
    }
    if (signal == SIGUSR1) {
      ask_for_flight_records();
      continue;
    }
    const bool first = ++interrupts_ == 1;
    const std::string place = nodes_ == nullptr ? "" : " to " + where(nodes_->own());
    begin_ending(signal, 128 + signal, Clock::now() + (first ? options_.interrupt_grace : milliseconds(0)),
                 fmt::format("lockrun: SIG{}{}: ended all ranks\n", ::sigabbrev_np(signal), place));
    tell_nodes(NodeReport::Kind::kInterrupted, signal);
  }
}

void Supervisor::ask_for_flight_records() {
  int asked = 0;
  for (const Rank& rank : ranks_)
    if (!rank.ended && signal_group_where_caught(rank.pid, SIGUSR1) > 0) ++asked;
  const std::string message = fmt::format("lockrun: SIGUSR1: asked {} of {} ranks here for their flight records\n", asked, ranks_.size());
  screen_.show({Piece::Kind::kLine, message}, true);
}

// Ctrl-Z: the ranks are in groups of their own, so the terminal does not stop them.
void Supervisor::pause_job() {
  signal_groups(SIGSTOP);
  ::raise(SIGSTOP);
  signal_groups(SIGCONT);
}

// Looks without reaping: while the leader is a zombie no other process can get its number.
void Supervisor::collect_exits() {
  for (Rank& rank : ranks_) {
    if (rank.ended) continue;
    siginfo_t info{};
    if (::waitid(P_PID, static_cast<id_t>(rank.pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) continue;
    rank.ended = Clock::now();
    exits_.push_back({rank.rank, rank.pid, info.si_code != CLD_EXITED, info.si_status, info.si_code == CLD_DUMPED, *rank.ended, rank.task});
  }
}

void Supervisor::judge_exits() {
  if (ending_) return;
  const Verdict verdict = judge(exits_, static_cast<int>(ranks_.size()), Clock::now(), kWaitForCause);
  if (verdict.action != Verdict::Action::kEndJob) return;
  failure_ = verdict;
  const auto first = std::find_if(exits_.begin(), exits_.end(), [](const RankExit& exit) { return exit.failed(); });
  begin_ending(SIGTERM, exits_[verdict.cause].exit_code(), first->when + options_.grace,
               failure_cause(exits_, verdict, nodes_ == nullptr ? "" : where(nodes_->own()), memory_kills()));
  tell_nodes(verdict.only_consequences ? NodeReport::Kind::kConsequence : NodeReport::Kind::kFailed, SIGTERM);
}

// Since the start.
std::optional<long> Supervisor::memory_kills() const {
  const auto now = out_of_memory_kills();
  return now && memory_kills_before_ ? std::optional(*now - *memory_kills_before_) : std::nullopt;
}

// The reader has gone, or the disk is full: no output may be lost in silence, so the job ends as any writer would.
void Supervisor::check_outputs() {
  if (ending_) return;
  for (const OutputQueue* queue : {&screen_.output(), &screen_.errors()}) {
    if (queue->error() == 0) continue;
    const bool closed = queue->error() == EPIPE;
    const std::string place = nodes_ == nullptr ? "" : ", on " + where(nodes_->own());
    const bool is_silent = closed && nodes_ == nullptr;
    begin_ending(SIGTERM, closed ? 128 + SIGPIPE : 1, Clock::now() + options_.grace,
                 is_silent ? "" : fmt::format("lockrun: cannot write the ranks' output{}: {}\n", place, std::strerror(queue->error())));
    tell_nodes(NodeReport::Kind::kLost, SIGTERM);
    return;
  }
}

void Supervisor::begin_ending(int signal, int exit_code, Clock::time_point kill_at, std::string message) {
  signal_groups(signal);
  signal_groups(SIGCONT);  // a stopped process would not see it
  if (!ending_) ending_ = Ending{exit_code, kill_at, false, std::move(message)};
  ending_->kill_at = std::min(ending_->kill_at, kill_at);
}

// This node's part of the job is over, or is to be: the first end on any node decides for all.
void Supervisor::tell_nodes(NodeReport::Kind kind, int signal) {
  if (nodes_ == nullptr) return;
  NodeReport report;
  report.kind = kind;
  report.signal = signal;
  if (ending_) report.exit_code = ending_->exit_code, report.cause = ending_->message;
  has_told_end_ = true;
  nodes_->report(std::move(report));
}

void Supervisor::follow_nodes() {
  if (nodes_ == nullptr) return;
  if (finished() && !ending_ && !has_told_end_) tell_nodes(NodeReport::Kind::kFinished, 0);
  nodes_->move();
  const auto& verdict = nodes_->verdict();
  if (!verdict || verdict->kind == NodeReport::Kind::kFinished) return;
  const bool is_gentle = verdict->kind == NodeReport::Kind::kInterrupted;
  const bool is_about_this_node = verdict->node == nodes_->own().node;  // it was stopped for a while, and given up
  if (!ending_)
    begin_ending(verdict->signal, verdict->exit_code, Clock::now() + (is_gentle ? options_.interrupt_grace : options_.grace),
                 is_about_this_node ? verdict->cause : "");
  ending_->exit_code = verdict->exit_code;
}

void Supervisor::kill_when_due() {
  if (!ending_ || ending_->killed || Clock::now() < ending_->kill_at) return;
  ending_->killed = true;
  signal_groups(SIGKILL);
}

// A rank that has ended: lets the processes that it started finish writing, ends its group, reaps it, closes its streams.
void Supervisor::clear_up(Rank& rank) {
  if (!rank.ended) return;
  const Clock::time_point now = Clock::now();
  const bool streams_open = rank.output.fd || rank.errors.fd;
  if (!rank.reaped) {
    const Clock::time_point until = ending_ && !ending_->killed ? ending_->kill_at : *rank.ended + kGroupLinger;
    if (streams_open && now < until) return;
    ::kill(-rank.pid, SIGKILL);
    guard_.forget(rank.pid);
    while (::waitpid(rank.pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    rank.reaped = now;
  }
  // A process that left the group on purpose may hold the streams for ever.
  for (const bool is_error : {false, true})
    if (now >= *rank.reaped + kGroupLinger && !screen_.queue(is_error).full()) finish_stream(rank, is_error);
}

void Supervisor::signal_groups(int signal) const {
  for (const Rank& rank : ranks_)
    if (!rank.reaped) ::kill(-rank.pid, signal);
}

// The message to the user when the job has failed: the same cause on all nodes, the rank's last lines where it ran.
std::string Supervisor::blame() const {
  const bool has_verdict = nodes_ != nullptr && nodes_->verdict() && nodes_->verdict()->kind != NodeReport::Kind::kFinished;
  std::string text;
  if (has_verdict && nodes_->verdict()->node != nodes_->own().node) {
    text = tell_verdict(*nodes_->verdict(), nodes_->facts_of(nodes_->verdict()->node));
    // The coordinator, which should have judged, is lost: the failure here may be the cause all the same.
    const bool may_be_cause = nodes_->verdict()->kind == NodeReport::Kind::kLost && failure_ && !failure_->only_consequences;
    if (!may_be_cause) return text;
  }
  if (!ending_ || !failure_) return ending_ ? ending_->message : "";
  const int cause = exits_[failure_->cause].rank;
  const auto is_cause = [cause](const Rank& rank) { return rank.rank == cause; };
  return text + ending_->message + failure_details(std::find_if(ranks_.begin(), ranks_.end(), is_cause)->last_errors.lines());
}

int Supervisor::conclude() {
  const std::string message = blame();
  if (!message.empty()) screen_.show({Piece::Kind::kLine, message}, true);
  while ((!screen_.output().empty() || !screen_.errors().empty()) && interrupts_ < 2) {
    wait();
    handle_signals();
  }
  return ending_ ? ending_->exit_code : 0;
}

}  // namespace lockstep::launch
