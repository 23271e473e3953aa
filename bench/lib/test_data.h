// The data that the ranks send and must receive. Values repeat after a prime number of elements, so that filling and
// checking need one pass, and a message with shifted cache lines or parts does not look right by chance.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/lib/collective_kind.h"

namespace lockstep::bench {

// The elements of a part; they repeat throughout it.
using Block = std::vector<std::byte>;

enum class Values {
  kExact,  // whole numbers whose sums, products, ... are exact in every element type, so the result is known
  kRough,  // full mantissas: a sum in another order has different bits
};

// The factor of rank `rank` in premul_sum, for which results stay exact.
double premul_factor(int rank);

class TestData {
 public:
  TestData(const CollectiveKind& kind, const MessageLayout& layout, const Call& call, int rank);

  // Writes this rank's input, and fills the rest of its memory with bytes that cannot be a result.
  void fill(const Memory& memory, Values values) const;

  // The number of wrong elements in this rank's result after fill(kExact) and the call. `full`: checks all elements;
  // otherwise the first and the last few hundred of each part.
  std::size_t count_wrong(const Memory& memory, bool full) const;

  // SHA-256 of this rank's result; "" if it receives nothing.
  std::string hash_result(const Memory& memory) const;

 private:
  bool sends() const { return kind_.sends_from(rank_, layout_.ranks, call_.root); }
  bool receives() const { return kind_.receives_at(rank_, layout_.ranks, call_.root); }

  double result(int part, std::int64_t index) const;  // value of an element that this rank receives

  const CollectiveKind& kind_;
  MessageLayout layout_;
  Call call_;
  int rank_;
  std::vector<Block> exact_, rough_, expected_;  // by part
};

}  // namespace lockstep::bench
