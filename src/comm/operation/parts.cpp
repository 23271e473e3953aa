#include "src/comm/operation/parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace lockstep {

std::uint64_t AlltoallvCounts::before(std::size_t from, std::size_t to) const {
  return std::accumulate(row(from), row(from) + to, std::uint64_t{0});
}

std::uint64_t AlltoallvCounts::largest_row() const {
  std::uint64_t largest = 0;
  for (std::size_t from = 0; from < ranks_; ++from) largest = std::max(largest, before(from, ranks_));
  return largest;
}

void AlltoallvCounts::say(std::size_t rank, const std::vector<std::size_t>& sends,
                          const std::vector<std::size_t>& expects) {
  std::copy(sends.begin(), sends.end(), row(rank));
  std::copy(expects.begin(), expects.end(), row(rank) + ranks_);
}

std::string AlltoallvCounts::disagreement() const {
  for (std::size_t to = 0; to < ranks_; ++to)
    for (std::size_t from = 0; from < ranks_; ++from)
      if (row(from)[to] != row(to)[ranks_ + from])
        return fmt::format(
            "rank {} sends {} elements to rank {}, which expects {}; what one rank sends, the other must receive", from,
            row(from)[to], to, row(to)[ranks_ + from]);
  return "";
}

}  // namespace lockstep
