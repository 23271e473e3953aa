// A set of byte strings, for all that a text begins with: a tree with one byte on each edge.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::data {

class ByteTrie {
 public:
  using Entry = std::pair<std::string_view, std::int32_t>;  // a string that is not empty, and its id

  // The strings differ.
  explicit ByteTrie(std::vector<Entry> entries) {
    std::sort(entries.begin(), entries.end());
    // Node by node; the nodes of one node's next bytes lie side by side, in the order of the bytes.
    std::vector<Range> ranges = {{0, entries.size(), 0}};
    for (std::size_t node = 0; node < ranges.size(); ++node) {
      const Range range = ranges[node];
      const auto next = [&](std::size_t i) { return entries[i].first[range.length]; };
      nodes_[node].first = static_cast<std::uint32_t>(nodes_.size());
      for (std::size_t begin = range.begin, end = begin; begin < range.end; begin = end) {
        if (entries[begin].first.size() == range.length) {  // sorted, it is the first
          nodes_[node].id = entries[begin].second;
          end = begin + 1;
          continue;
        }
        while (end < range.end && next(end) == next(begin)) ++end;
        nodes_.push_back({.byte = static_cast<std::uint8_t>(next(begin))});
        ranges.push_back({begin, end, range.length + 1});
        ++nodes_[node].count;
      }
    }
  }

  // Calls visit(length, id) for each string that the text begins with, the shortest first.
  template <typename Visit> void visit_prefixes(std::string_view text, Visit&& visit) const {
    const Node* node = nodes_.data();
    for (std::size_t at = 0; at < text.size(); ++at) {
      const Node* const first = nodes_.data() + node->first;
      const auto byte = static_cast<std::uint8_t>(text[at]);
      const Node* const found = std::lower_bound(
          first, first + node->count, byte, [](const Node& each, std::uint8_t wanted) { return each.byte < wanted; });
      if (found == first + node->count || found->byte != byte) return;
      node = found;
      if (node->id >= 0) visit(at + 1, node->id);
    }
  }

 private:
  struct Node {
    std::uint32_t first = 0;  // node of the next bytes
    std::int32_t id = -1;     // of the string that ends here; -1: none
    std::uint16_t count = 0;
    std::uint8_t byte = 0;  // on the edge to this node
  };
  struct Range {  // of the entries that begin with a node's string
    std::size_t begin, end, length;
  };

  std::vector<Node> nodes_ = std::vector<Node>(1);
};

}  // namespace lockstep::data
