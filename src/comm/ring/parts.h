// What the ranks send to each other in an exchange of parts of unequal length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::ring {

// counts(from, to): elements. Every rank knows its own row and learns the others'.
class CountMatrix {
 public:
  explicit CountMatrix(std::size_t ranks) : ranks_(ranks), counts_(ranks * ranks) {}

  std::uint64_t* row(std::size_t from) { return counts_.data() + from * ranks_; }
  const std::uint64_t* row(std::size_t from) const { return counts_.data() + from * ranks_; }
  // What `from` sends to the ranks below `to`: where the part for `to` begins. before(from, ranks): all of it.
  std::uint64_t before(std::size_t from, std::size_t to) const;
  std::uint64_t largest_row() const;
  // "" when `me` expects from everybody what everybody sends to it; else who and how much.
  std::string disagreement(std::size_t me, const std::vector<std::size_t>& expected) const;

 private:
  std::size_t ranks_;
  std::vector<std::uint64_t> counts_;
};

}  // namespace lockstep::ring
