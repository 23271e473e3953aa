#include "src/diagnose/stragglers.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace lockstep::diagnose {

namespace {

constexpr std::size_t kFewestCalls = 20;
constexpr double kLeastLateness = 1e-3;

// The time at which each recorded rank entered each call.
using Arrivals = std::map<std::uint64_t, std::vector<std::pair<std::int64_t, int>>>;

Arrivals arrivals_of(const GroupView& group, const std::map<const FlightDump*, std::int64_t>& shifts) {
  Arrivals arrivals;
  for (const RankView& view : group.ranks) {
    if (view.group == nullptr) continue;
    for (const FlightEntry& call : view.group->operations)
      if (call.state == FlightState::kFinished)
        arrivals[call.sequence].emplace_back(call.issued_ns + shifts.at(view.dump), view.job_rank);
  }
  return arrivals;
}

}  // namespace

void find_stragglers(const std::vector<FlightDump>& dumps, const std::vector<GroupView>& groups,
                     std::vector<Finding>& findings) {
  std::map<const FlightDump*, std::int64_t> shifts;
  const std::vector<std::int64_t> by_index = clock_shifts(dumps);
  for (std::size_t i = 0; i < dumps.size(); ++i) shifts[&dumps[i]] = by_index[i];
  for (const GroupView& group : groups) {
    std::map<int, std::vector<double>> lateness;  // by rank: its delay in each call to which it came last
    std::size_t calls = 0;
    for (auto& [sequence, times] : arrivals_of(group, shifts)) {
      if (times.size() != group.ranks.size() || times.size() < 2) continue;
      ++calls;
      std::sort(times.begin(), times.end());
      const std::int64_t late = times.back().first - times[(times.size() - 1) / 2].first;
      lateness[times.back().second].push_back(static_cast<double>(late) * 1e-9);
    }
    for (auto& [rank, times] : lateness) {
      if (calls < kFewestCalls || times.size() * 2 <= calls) continue;
      std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
      const double typical = times[times.size() / 2];
      if (typical < kLeastLateness) continue;
      findings.push_back(
          {Finding::Kind::kStraggler,
           fmt::format(
               "rank {} came last to {} of the {} last calls of group {}, typically {:.1f} ms after the others: they "
               "wait for it",
               rank, times.size(), calls, group.name, typical * 1e3),
           group.name,
           0,
           {rank},
           {},
           typical});
    }
  }
}

}  // namespace lockstep::diagnose
