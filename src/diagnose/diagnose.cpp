#include "src/diagnose/diagnose.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>

#include "src/diagnose/one_clock.h"
#include "src/diagnose/stragglers.h"

namespace lockstep::diagnose {

namespace {

using Kind = Finding::Kind;

double seconds(std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; }

// The numbered calls of one kind in a group, on one rank: its collectives, or its allocations.
using Calls = std::vector<const FlightEntry*>;

Calls collectives_of(const FlightGroup& group) {
  Calls calls;
  for (const FlightEntry& entry : group.operations) calls.push_back(&entry);
  return calls;
}

Calls allocations_of(const FlightGroup& group) {
  Calls calls;
  for (const FlightEntry& entry : group.messages)
    if (entry.operation == "allocate") calls.push_back(&entry);
  return calls;
}

struct Caller {
  const RankView* view;
  Calls calls;

  std::uint64_t last() const { return calls.empty() ? 0 : calls.back()->sequence; }
  const FlightEntry* find(std::uint64_t sequence) const {
    const auto found =
        std::find_if(calls.begin(), calls.end(), [&](const FlightEntry* call) { return call->sequence == sequence; });
    return found == calls.end() ? nullptr : *found;
  }
  // The first call that it has not finished, or the next one.
  std::uint64_t next() const {
    const auto open = std::find_if(calls.begin(), calls.end(),
                                   [](const FlightEntry* call) { return call->state != FlightState::kFinished; });
    return open == calls.end() ? last() + 1 : (*open)->sequence;
  }
};

std::string with_group(const GroupView& group, bool is_only, const std::string& text) {
  return is_only ? text : fmt::format("group {}: {}", group.name, text);
}

// How long the call had waited when it failed, or when its record was written.
double waited(const Caller& caller, const FlightEntry& call) {
  return seconds((call.has_ended() ? call.ended_ns : caller.view->dump->written_ns) - call.issued_ns);
}

std::string what_it_did_last(const Caller& caller) {
  const std::string who = name_ranks({caller.view->job_rank});
  if (caller.calls.empty()) return who + " has made no such call at all";
  const FlightEntry& last = *caller.calls.back();
  if (!last.has_ended()) return fmt::format("{} is still in {}", who, describe(last));
  return fmt::format("{}'s last operation, {}, {} {:.1f} s before its record was written", who, describe(last),
                     last.state == FlightState::kFailed ? "failed" : "finished",
                     seconds(caller.view->dump->written_ns - last.ended_ns));
}

// "; it is in barrier #2 of group b since 3.0 s", if the rank is in another group's call.
std::string where_else(const RankView& view) {
  for (const FlightGroup& other : view.dump->groups) {
    if (&other == view.group) continue;
    for (const FlightEntry& call : other.operations)
      if (!call.has_ended())
        return fmt::format("; it has been in {} of group {} for {:.1f} s", describe(call), other.name,
                           seconds(view.dump->written_ns - call.issued_ns));
  }
  return "";
}

// The group's state at one call.
struct Frontier {
  std::uint64_t sequence = 0;
  const FlightEntry* call = nullptr;  // as described by the first rank that is in it
  std::vector<const Caller*> inside, finished, absent;
  std::vector<int> unrecorded;
  double longest_wait = 0;

  std::vector<int> ranks(const std::vector<const Caller*>& callers) const {
    std::vector<int> names;
    for (const Caller* caller : callers) names.push_back(caller->view->job_rank);
    return names;
  }
};

// A reserved place of Work::then() whose call has not been made yet.
bool is_waiting_follower(const FlightEntry& call) { return call.operation == "follower"; }

// Returns false if no rank is in a call.
bool find_frontier(const std::vector<Caller>& callers, Frontier& at) {
  if (callers.empty()) return false;
  at.sequence = callers.front().next();
  for (const Caller& caller : callers) at.sequence = std::min(at.sequence, caller.next());
  for (const Caller& caller : callers) {
    const FlightEntry* call = caller.find(at.sequence);
    if (call == nullptr) {
      (caller.last() >= at.sequence ? at.finished : at.absent)
          .push_back(&caller);  // finished so long ago that it is not in the record
      continue;
    }
    if (is_waiting_follower(*call)) {
      at.absent.push_back(&caller);
      continue;
    }
    if (call->state == FlightState::kFinished) {
      at.finished.push_back(&caller);
    } else {
      at.inside.push_back(&caller);
      at.longest_wait = std::max(at.longest_wait, waited(caller, *call));
    }
    if (at.call == nullptr || (at.call->state == FlightState::kFinished && call->state != FlightState::kFinished))
      at.call = call;
  }
  return at.call != nullptr;
}

// Finds ranks that make different calls at the same place.
bool find_mismatch(const GroupView& group, bool is_only, const std::vector<Caller>& callers, const Frontier& at,
                   std::vector<Finding>& findings) {
  std::map<std::string, std::vector<int>> sides;
  for (const Caller& caller : callers)
    if (const FlightEntry* call = caller.find(at.sequence); call != nullptr && !is_waiting_follower(*call))
      sides[describe(*call)].push_back(caller.view->job_rank);
  if (sides.size() < 2) return false;
  Finding finding{Kind::kMismatch, "", group.name, at.sequence};
  std::string table;
  for (const auto& [what, ranks] : sides) {
    finding.sides.push_back({what, ranks});
    finding.ranks.insert(finding.ranks.end(), ranks.begin(), ranks.end());
    table += fmt::format("\n    {}: {}", name_ranks(ranks), what);
  }
  finding.text =
      with_group(group, is_only, fmt::format("the ranks make different calls at #{}:{}", at.sequence, table));
  findings.push_back(std::move(finding));
  return true;
}

void explain_wait(const GroupView& group, bool is_only, const Frontier& at, std::vector<Finding>& findings) {
  const std::vector<int> inside = at.ranks(at.inside);
  const std::string what = describe(*at.call);
  const std::string waits = inside.empty() ? ""
                                           : fmt::format("; {} {} waited in it for {:.1f} s", name_ranks(inside),
                                                         inside.size() == 1 ? "has" : "have", at.longest_wait);
  if (!at.absent.empty()) {
    const std::vector<int> absent = at.ranks(at.absent);
    Finding finding{Kind::kNotCalled, "", group.name, at.sequence, absent, inside, at.longest_wait};
    std::string text =
        fmt::format("{} {} not called {}{}", name_ranks(absent), absent.size() == 1 ? "has" : "have", what, waits);
    for (const Caller* caller : at.absent) text += "; " + what_it_did_last(*caller) + where_else(*caller->view);
    finding.text = with_group(group, is_only, text);
    findings.push_back(std::move(finding));
  }
  if (!at.unrecorded.empty()) {
    Finding finding{Kind::kNoRecord, "", group.name, at.sequence, at.unrecorded, inside, at.longest_wait};
    finding.text = with_group(group, is_only,
                              fmt::format("{} left no record: it ended, died or was stopped, or its machine cannot be "
                                          "reached. {} is the first call that not all others finished{}",
                                          name_ranks(at.unrecorded), what, waits));
    findings.push_back(std::move(finding));
  }
  if (!at.absent.empty() || !at.unrecorded.empty() || inside.empty()) return;
  Finding finding{Kind::kNotFinished, "", group.name, at.sequence, inside, {}, at.longest_wait};
  const std::string others =
      at.finished.empty() ? "none has finished it" : name_ranks(at.ranks(at.finished)) + " finished it";
  finding.text =
      with_group(group, is_only,
                 fmt::format("all ranks have called {}; {} {} been in it for {:.1f} s, {}: the connection between them "
                             "is slow or cut, or one of them was stopped inside it",
                             what, name_ranks(inside), inside.size() == 1 ? "has" : "have", at.longest_wait, others));
  findings.push_back(std::move(finding));
}

using CallsOf = std::function<Calls(const FlightGroup&)>;

void look_at_calls(const GroupView& group, bool is_only, const CallsOf& calls_of, std::vector<Finding>& findings) {
  std::vector<Caller> callers;
  Frontier at;
  for (const RankView& view : group.ranks)
    if (view.group != nullptr)
      callers.push_back({&view, calls_of(*view.group)});
    else
      at.unrecorded.push_back(view.job_rank);
  if (!find_frontier(callers, at)) return;
  if (find_mismatch(group, is_only, callers, at, findings)) return;
  explain_wait(group, is_only, at, findings);
}

std::size_t count_messages(const RankView& view, const char* operation, int peer, int tag) {
  return static_cast<std::size_t>(std::count_if(
      view.group->messages.begin(), view.group->messages.end(),
      [&](const FlightEntry& each) { return each.operation == operation && each.peer == peer && each.tag == tag; }));
}

// Finds open receives: the oldest of each rank.
void look_at_messages(const GroupView& group, bool is_only, std::vector<Finding>& findings) {
  for (std::size_t r = 0; r < group.ranks.size(); ++r) {
    const RankView& view = group.ranks[r];
    if (view.group == nullptr) continue;
    const auto open =
        std::find_if(view.group->messages.begin(), view.group->messages.end(), [](const FlightEntry& each) {
          return (each.operation == "recv" || each.operation == "send") && each.state != FlightState::kFinished;
        });
    if (open == view.group->messages.end()) continue;
    const double since = seconds((open->has_ended() ? open->ended_ns : view.dump->written_ns) - open->issued_ns);
    Finding finding{Kind::kMessage, "", group.name, open->sequence, {}, {view.job_rank}, since};
    std::string text =
        fmt::format("{} has been in {} for {:.1f} s", name_ranks({view.job_rank}), describe(*open), since);
    const bool named =
        open->operation == "recv" && open->peer >= 0 && open->peer < static_cast<int>(group.ranks.size());
    if (named) {
      const RankView& peer = group.ranks[static_cast<std::size_t>(open->peer)];
      finding.ranks = {peer.job_rank};
      if (peer.group == nullptr)
        text += fmt::format("; {} left no record", name_ranks({peer.job_rank}));
      else if (count_messages(peer, "send", static_cast<int>(r), open->tag) <
               count_messages(view, "recv", open->peer, open->tag))
        text += fmt::format("; {} has not sent it", name_ranks({peer.job_rank})) + where_else(peer);
    }
    finding.text = with_group(group, is_only, text);
    findings.push_back(std::move(finding));
  }
}

// The errors that the ranks reported, with equal texts combined: a rank in the operation reports "operation: reason",
// any other only the reason.
std::vector<Finding::Side> errors_of(const GroupView& group) {
  std::map<std::size_t, std::map<std::string, std::vector<int>>>
      said;  // by length, so that a reason comes before texts that contain it
  for (const RankView& view : group.ranks)
    if (view.group != nullptr && view.group->failure)
      said[view.group->failure->text.size()][view.group->failure->text].push_back(view.job_rank);
  std::vector<Finding::Side> sides;
  const auto side_of = [&](const std::string& text) -> Finding::Side& {
    const auto same = std::find_if(sides.begin(), sides.end(),
                                   [&](const Finding::Side& side) { return text.ends_with(": " + side.what); });
    return same != sides.end() ? *same : sides.emplace_back(Finding::Side{text, {}});
  };
  for (const auto& [length, texts] : said)
    for (const auto& [text, ranks] : texts) {
      Finding::Side& side = side_of(text);
      side.ranks.insert(side.ranks.end(), ranks.begin(), ranks.end());
      std::sort(side.ranks.begin(), side.ranks.end());
    }
  return sides;
}

void quote_errors(const std::vector<GroupView>& groups, std::vector<Finding>& findings) {
  for (const GroupView& group : groups)
    for (Finding::Side& side : errors_of(group)) {
      Finding finding{Kind::kError, "", group.name, 0, side.ranks};
      finding.text =
          with_group(group, groups.size() == 1, fmt::format("{} ended with: {}", name_ranks(side.ranks), side.what));
      finding.sides.push_back(std::move(side));
      findings.push_back(std::move(finding));
    }
}

void say_that_all_is_well(const std::vector<GroupView>& groups, std::vector<Finding>& findings) {
  std::string text = "nothing is under way, and nothing has failed";
  for (const GroupView& group : groups) {
    const auto recorded = std::find_if(group.ranks.begin(), group.ranks.end(),
                                       [](const RankView& view) { return view.group != nullptr; });
    if (recorded == group.ranks.end() || recorded->group->operations.empty()) continue;
    text += fmt::format("; all ranks of group {} have finished {}", group.name,
                        describe(recorded->group->operations.back()));
  }
  findings.push_back({Kind::kQuiet, text});
}

}  // namespace

std::vector<Finding> diagnose(const std::vector<FlightDump>& dumps) {
  const std::vector<GroupView> groups = groups_of(dumps);
  std::vector<Finding> findings;
  for (const GroupView& group : groups) {
    look_at_calls(group, groups.size() == 1, collectives_of, findings);
    look_at_calls(group, groups.size() == 1, allocations_of, findings);
    look_at_messages(group, groups.size() == 1, findings);
  }
  std::stable_sort(findings.begin(), findings.end(),
                   [](const Finding& a, const Finding& b) { return a.kind < b.kind; });
  quote_errors(groups, findings);
  if (findings.empty()) say_that_all_is_well(groups, findings);
  find_stragglers(dumps, groups, findings);
  return findings;
}

const char* name_of(Kind kind) {
  constexpr const char* kNames[] = {"mismatch", "not_called", "no_record", "not_finished", "message",
                                    "error",    "straggler",  "ignored",   "quiet"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string name_ranks(const std::vector<int>& ranks) {
  constexpr std::size_t kMostNamed = 32;
  const std::size_t named = std::min(ranks.size(), kMostNamed);
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < named; ++i) text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return named == ranks.size() ? text : text + fmt::format(" and {} more", ranks.size() - named);
}

}  // namespace lockstep::diagnose
