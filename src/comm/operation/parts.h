// The lengths of the parts that the ranks send to each other when these are unequal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

// A row has one rank's counts in elements: what it sends to each rank, then what it expects from each. Every rank knows
// its own row and receives the others', so that all see the same mismatch.
class AlltoallvCounts {
 public:
  explicit AlltoallvCounts(std::size_t ranks) : ranks_(ranks), counts_(ranks * 2 * ranks) {}

  std::size_t row_length() const { return 2 * ranks_; }
  std::size_t row_bytes() const { return row_length() * sizeof(std::uint64_t); }
  std::uint64_t* row(std::size_t rank) { return counts_.data() + rank * row_length(); }
  const std::uint64_t* row(std::size_t rank) const { return counts_.data() + rank * row_length(); }
  void say(std::size_t rank, const std::vector<std::size_t>& sends, const std::vector<std::size_t>& expects);
  // The sum of the parts that `from` sends to the ranks below `to`, which is where the part for `to` begins.
  // before(from, ranks) is the total.
  std::uint64_t before(std::size_t from, std::size_t to) const;
  std::uint64_t largest_row() const;
  // "" if all ranks expect the parts that are sent to them; else the first mismatch.
  std::string disagreement() const;

 private:
  std::size_t ranks_;
  std::vector<std::uint64_t> counts_;
};

}  // namespace lockstep
