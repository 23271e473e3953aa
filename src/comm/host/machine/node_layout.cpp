#include "src/comm/host/machine/node_layout.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/core/error.h"

namespace lockstep::host {

namespace {

// "0-3,5": ranges of consecutive ranks.
std::string describe_ranks(const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t begin = 0; begin < ranks.size();) {
    std::size_t end = begin + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (!text.empty()) text += ",";
    text += end - begin == 1 ? std::to_string(ranks[begin]) : fmt::format("{}-{}", ranks[begin], ranks[end - 1]);
    begin = end;
  }
  return text;
}

}  // namespace

NodeLayout::NodeLayout(const std::vector<int>& leaders) {
  for (int rank = 0; rank < static_cast<int>(leaders.size()); ++rank) {
    const int leader = leaders[static_cast<std::size_t>(rank)];
    LOCKSTEP_CHECK(leader >= 0 && leader <= rank, "rank {} cannot lead the node of rank {}", leader, rank);
    if (leader == rank) members_.emplace_back();
    node_of_.push_back(leader == rank ? nodes() - 1 : node_of(leader));
    LOCKSTEP_CHECK(leader == rank || members(node_of(leader)).front() == leader, "rank {} leads no node", leader);
    auto& node = members_[static_cast<std::size_t>(node_of_.back())];
    local_rank_of_.push_back(static_cast<int>(node.size()));
    node.push_back(rank);
  }
  for (const auto& node : members_)
    rails_ = rails_ == 0 ? static_cast<int>(node.size()) : std::min(rails_, static_cast<int>(node.size()));
}

std::string NodeLayout::describe() const {
  std::string text;
  for (const auto& node : members_) text += (text.empty() ? "ranks " : " | ") + describe_ranks(node);
  return text;
}

}  // namespace lockstep::host
