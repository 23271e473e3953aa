#include "src/launch/supervise/failure_policy.h"

#include <fmt/format.h>

#include <csignal>
#include <cstring>

#include "lockstep/core/error.h"

namespace lockstep::launch {

bool RankExit::is_consequence() const { return !by_signal && value == kPeerLostExitCode; }

Verdict judge(const std::vector<RankExit>& exits, int ranks, Clock::time_point now,
              std::chrono::milliseconds wait_for_cause) {
  Verdict verdict;
  bool consequence_seen = false;
  for (std::size_t i = 0; i < exits.size(); ++i) {
    if (!exits[i].failed()) continue;
    if (!exits[i].is_consequence()) {
      verdict.action = Verdict::Action::kEndJob;
      verdict.cause = i;
      verdict.only_consequences = false;
      return verdict;
    }
    if (consequence_seen) continue;
    consequence_seen = true;
    verdict.cause = i;
    verdict.until = exits[i].when + wait_for_cause;
  }
  if (!consequence_seen) return verdict;
  const bool nobody_left = exits.size() == static_cast<std::size_t>(ranks);
  verdict.only_consequences = true;
  verdict.action = nobody_left || now >= verdict.until ? Verdict::Action::kEndJob : Verdict::Action::kWaitForCause;
  return verdict;
}

std::string describe(const RankExit& exit) {
  if (!exit.by_signal) return fmt::format("exited with code {}", exit.value);
  const char* name = ::sigabbrev_np(exit.value);
  const char* meaning = ::sigdescr_np(exit.value);
  return fmt::format("was killed by signal {} (SIG{}: {}){}", exit.value, name == nullptr ? "?" : name,
                     meaning == nullptr ? "unknown" : meaning, exit.core_dumped ? ", core dumped" : "");
}

namespace {

// What is known: the system counts such kills, and does not say whom it has killed.
std::string who_sent_sigkill(const std::optional<MemoryKills>& kills) {
  if (!kills)
    return "lockrun: that signal did not come from lockrun: a process sent it, perhaps the rank itself, or the system "
           "because memory ran "
           "out (see dmesg)\n";
  const auto within = kills->within.count();
  if (kills->count > 0)
    return fmt::format(
        "lockrun: the system's memory killer has ended {} process{} of this control group in the last {} s; if the "
        "rank was one of them, "
        "give the job more memory, or start fewer ranks\n",
        kills->count, kills->count == 1 ? "" : "es", within);
  return fmt::format(
      "lockrun: that signal did not come from lockrun, and the system's memory killer has ended no process of this "
      "control group in the "
      "last {} s: a process sent it, perhaps the rank itself\n",
      within);
}

}  // namespace

std::string failure_cause(const std::vector<RankExit>& exits, const Verdict& verdict, const std::string& where,
                          const std::optional<MemoryKills>& memory_kills) {
  const RankExit& cause = exits[verdict.cause];
  const auto name_of = [&](const RankExit& exit) {
    return fmt::format("rank {} ({}{}pid {}{}{})", exit.rank, exit.task, exit.task.empty() ? "" : ", ", exit.pid,
                       where.empty() ? "" : ", ", where);
  };
  std::string text;
  if (verdict.only_consequences) {
    text =
        fmt::format("lockrun: {} lost a peer (code {}), but no rank failed by itself\n", name_of(cause), cause.value);
    for (const RankExit& exit : exits)
      if (!exit.failed())
        text += fmt::format("lockrun: {} had ended with code 0: did it leave too early?\n", name_of(exit));
  } else {
    text = fmt::format("lockrun: {} {}\n", name_of(cause), describe(cause));
    if (cause.by_signal && cause.value == SIGKILL) text += who_sent_sigkill(memory_kills);
  }
  return text;
}

std::string failure_details(const std::vector<std::string>& last_lines) {
  if (last_lines.empty()) return "lockrun: it wrote nothing to stderr\n";
  std::string text = "lockrun: its last lines on stderr:\n";
  for (const std::string& line : last_lines) text += "    " + line + "\n";
  return text;
}

}  // namespace lockstep::launch
