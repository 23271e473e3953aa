#include "src/diagnose/one_clock.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace lockstep::diagnose {

namespace {

constexpr std::size_t kFewestCommonCalls = 3;

// In these operations every rank waits for every other.
bool ends_together(const std::string& operation) {
  static const std::set<std::string> kSuch = {"barrier",      "all_reduce", "all_gather",
                                              "all_gather_v", "all_to_all", "all_to_all_v"};
  return kSuch.count(operation) != 0;
}

// The end of this rank's calls, by group and number.
std::map<std::pair<std::string, std::uint64_t>, std::int64_t> ends_of(const FlightDump& dump, std::int64_t shift) {
  std::map<std::pair<std::string, std::uint64_t>, std::int64_t> ends;
  for (const FlightGroup& group : dump.groups)
    for (const FlightEntry& entry : group.operations)
      if (entry.state == FlightState::kFinished && ends_together(entry.operation))
        ends[{group.name, entry.sequence}] = entry.ended_ns + shift;
  return ends;
}

}  // namespace

std::vector<std::int64_t> clock_shifts(const std::vector<FlightDump>& dumps) {
  std::vector<std::int64_t> shifts(dumps.size());
  std::map<std::string, std::size_t> first_of;  // by boot id
  std::map<std::string, std::vector<std::int64_t>> differences;
  for (std::size_t i = 0; i < dumps.size(); ++i) {
    const FlightDump& first = dumps[first_of.try_emplace(dumps[i].boot_id, i).first->second];
    shifts[i] = (first.written_ns - first.monotonic_ns) - (dumps[i].written_ns - dumps[i].monotonic_ns);
    if (first.boot_id == dumps[0].boot_id) continue;
    const auto here = ends_of(dumps[0], 0);
    for (const auto& [call, end] : ends_of(dumps[i], shifts[i]))
      if (const auto common = here.find(call); common != here.end())
        differences[first.boot_id].push_back(common->second - end);
  }
  for (std::size_t i = 0; i < dumps.size(); ++i) {
    const auto found = differences.find(dumps[i].boot_id);
    if (found == differences.end() || found->second.size() < kFewestCommonCalls) continue;
    auto& all = found->second;
    std::nth_element(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2), all.end());
    shifts[i] += all[all.size() / 2];
  }
  return shifts;
}

std::vector<GroupView> groups_of(const std::vector<FlightDump>& dumps) {
  std::vector<GroupView> views;
  std::map<std::string, std::size_t> index_of;
  for (const FlightDump& dump : dumps)
    for (const FlightGroup& group : dump.groups) {
      // Groups of one split may have the same name; a name with other members is another group.
      std::string key = group.name;
      for (const int member : group.members) key += "," + std::to_string(member);
      const auto [found, is_new] = index_of.try_emplace(key, views.size());
      if (is_new) {
        views.push_back({group.name, std::vector<RankView>(static_cast<std::size_t>(group.world_size))});
        for (std::size_t r = 0; r < views.back().ranks.size(); ++r)
          views.back().ranks[r].job_rank = r < group.members.size() ? group.members[r] : static_cast<int>(r);
      }
      auto& ranks = views[found->second].ranks;
      const auto r = static_cast<std::size_t>(group.rank);
      if (r >= ranks.size()) continue;  // of another world: the comparison of the records reports it
      ranks[r].dump = &dump;
      ranks[r].group = &group;
    }
  return views;
}

}  // namespace lockstep::diagnose
