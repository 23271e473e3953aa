#include "src/launch/near_cores.h"

#include <algorithm>
#include <map>

#include "lockstep/launch/launch.h"

namespace lockstep::launch {

namespace {

std::vector<int> among(const std::vector<int>& cores, const std::vector<int>& near) {
  std::vector<int> both;
  for (const int core : cores)
    if (std::find(near.begin(), near.end(), core) != near.end()) both.push_back(core);
  return both;
}

using Groups = std::map<std::vector<int>, std::vector<std::size_t>>;  // cores -> ranks

bool are_disjoint(const Groups& groups, std::size_t core_count) {
  std::vector<int> all;
  for (const auto& [cores, ranks] : groups) all.insert(all.end(), cores.begin(), cores.end());
  std::sort(all.begin(), all.end());
  return all.size() <= core_count && std::adjacent_find(all.begin(), all.end()) == all.end();
}

}  // namespace

std::vector<std::vector<int>> assign_near_cores(const std::vector<int>& cores, const std::vector<NearDevice>& near) {
  const auto plain = [&] { return assign_cores(cores, static_cast<int>(near.size())); };
  Groups groups;
  for (std::size_t rank = 0; rank < near.size(); ++rank) {
    const std::vector<int> candidates = among(cores, near[rank].cores);
    if (candidates.empty()) return plain();
    groups[candidates].push_back(rank);
  }
  if (!are_disjoint(groups, cores.size())) return plain();
  std::vector<std::vector<int>> shares(near.size());
  for (const auto& [candidates, ranks] : groups) {
    auto split = assign_cores(candidates, static_cast<int>(ranks.size()));
    for (std::size_t i = 0; i < ranks.size(); ++i) shares[ranks[i]] = split[i].empty() ? candidates : std::move(split[i]);
  }
  return shares;
}

std::vector<int> memory_nodes(const std::vector<NearDevice>& near) {
  std::vector<int> nodes;
  for (const NearDevice& each : near) nodes.push_back(each.nodes.size() == 1 ? each.nodes[0] : -1);
  return nodes;
}

}  // namespace lockstep::launch
