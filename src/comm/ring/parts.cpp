#include "src/comm/ring/parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace lockstep::ring {

std::uint64_t CountMatrix::before(std::size_t from, std::size_t to) const {
  return std::accumulate(row(from), row(from) + to, std::uint64_t{0});
}

std::uint64_t CountMatrix::largest_row() const {
  std::uint64_t largest = 0;
  for (std::size_t from = 0; from < ranks_; ++from) largest = std::max(largest, before(from, ranks_));
  return largest;
}

std::string CountMatrix::disagreement(std::size_t me, const std::vector<std::size_t>& expected) const {
  for (std::size_t from = 0; from < ranks_; ++from)
    if (row(from)[me] != expected[from])
      return fmt::format("rank {} sends {} elements to rank {}, which expects {}; what one rank sends, the other must receive", from,
                         row(from)[me], me, expected[from]);
  return "";
}

}  // namespace lockstep::ring
