#include "src/launch/supervise/failure_policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstring>

#include "lockstep/core/error.h"

namespace lockstep::launch {

bool RankExit::is_preempted() const { return !by_signal && value == kPreemptedExitCode; }
bool RankExit::is_consequence() const { return !by_signal && value == kPeerLostExitCode; }

int failed_workers(const std::vector<RankExit>& exits) {
  return static_cast<int>(
      std::count_if(exits.begin(), exits.end(), [](const RankExit& exit) { return exit.may_fail && exit.failed(); }));
}

namespace {

// A server that has only lost a peer may have lost a worker: blames the last one that failed by itself.
void blame_worker(const std::vector<RankExit>& exits, Decision& decision) {
  for (std::size_t i = 0; i < exits.size(); ++i) {
    if (!exits[i].may_fail || !exits[i].failed() || exits[i].is_consequence()) continue;
    decision.cause = i;
    decision.only_consequences = false;
  }
}

}  // namespace

Decision decide(const std::vector<RankExit>& exits, int ranks, Clock::time_point now,
                std::chrono::milliseconds wait_for_cause, int workers) {
  Decision decision;
  bool consequence_seen = false;
  const bool is_worker_left = failed_workers(exits) < workers;
  for (std::size_t i = 0; i < exits.size(); ++i) {
    if (!exits[i].failed() || (exits[i].may_fail && is_worker_left)) continue;
    if (!exits[i].is_consequence()) {
      decision.action = Decision::Action::kEndJob;
      decision.cause = i;
      decision.only_consequences = false;
      return decision;
    }
    if (consequence_seen) continue;
    consequence_seen = true;
    decision.cause = i;
    decision.until = exits[i].when + wait_for_cause;
  }
  if (!consequence_seen) return decision;
  const bool nobody_left = exits.size() == static_cast<std::size_t>(ranks);
  decision.only_consequences = true;
  decision.action = nobody_left || now >= decision.until ? Decision::Action::kEndJob : Decision::Action::kWaitForCause;
  if (is_worker_left && decision.action == Decision::Action::kEndJob) blame_worker(exits, decision);
  return decision;
}

std::string describe(const RankExit& exit) {
  if (!exit.by_signal) return fmt::format("exited with code {}", exit.value);
  const char* name = ::sigabbrev_np(exit.value);
  const char* meaning = ::sigdescr_np(exit.value);
  return fmt::format("was killed by signal {} (SIG{}: {}){}", exit.value, name == nullptr ? "?" : name,
                     meaning == nullptr ? "unknown" : meaning, exit.core_dumped ? ", core dumped" : "");
}

namespace {

// The known facts: the system counts such kills, but does not report the victims.
std::string explain_sigkill(const std::optional<MemoryKills>& kills) {
  if (!kills)
    return "lockrun: that signal did not come from lockrun: a process sent it, perhaps the rank itself, or the "
           "system because memory ran out (see dmesg)\n";
  const auto within = kills->within.count();
  if (kills->count > 0)
    return fmt::format(
        "lockrun: the system's memory killer has ended {} process{} of this control group in the last {} s; if the "
        "rank was one of them, give the job more memory, or start fewer ranks\n",
        kills->count, kills->count == 1 ? "" : "es", within);
  return fmt::format(
      "lockrun: that signal did not come from lockrun, and the system's memory killer has ended no process of this "
      "control group in the last {} s: a process sent it, perhaps the rank itself\n",
      within);
}

std::string name_of(const RankExit& exit, const std::string& where) {
  return fmt::format("rank {} ({}{}pid {}{}{})", exit.rank, exit.task, exit.task.empty() ? "" : ", ", exit.pid,
                     where.empty() ? "" : ", ", where);
}

}  // namespace

std::string allowed_failure(const RankExit& exit, int left, int workers) {
  return fmt::format("lockrun: {} {}: the job goes on with {} of {} workers\n", name_of(exit, ""), describe(exit), left,
                     workers);
}

std::string failure_cause(const std::vector<RankExit>& exits, const Decision& decision, const std::string& where,
                          const std::optional<MemoryKills>& memory_kills) {
  const RankExit& cause = exits[decision.cause];
  std::string text;
  if (decision.only_consequences) {
    text = fmt::format("lockrun: {} lost a peer (code {}), but no rank failed by itself\n", name_of(cause, where),
                       cause.value);
    for (const RankExit& exit : exits)
      if (exit.is_preempted())
        text += fmt::format("lockrun: {} had saved and left with code {}\n", name_of(exit, where), exit.value);
      else if (!exit.failed())
        text += fmt::format("lockrun: {} had ended with code 0: did it leave too early?\n", name_of(exit, where));
  } else {
    text = fmt::format("lockrun: {} {}\n", name_of(cause, where), describe(cause));
    if (cause.by_signal && cause.value == SIGKILL) text += explain_sigkill(memory_kills);
  }
  return text;
}

std::string failure_details(const std::vector<std::string>& last_lines) {
  if (last_lines.empty()) return "lockrun: it wrote nothing on stderr\n";
  std::string text = "lockrun: its last lines on stderr:\n";
  for (const std::string& line : last_lines) text += "    " + line + "\n";
  return text;
}

}  // namespace lockstep::launch
