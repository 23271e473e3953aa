// The merges of byte-pair encoding, by pairs of ids: a hash table with open addressing.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

namespace lockstep::data {

class MergeTable {
 public:
  struct Merge {
    std::uint64_t pair = kEmpty;
    std::int32_t order = 0, id = 0;
  };

  void reserve(std::size_t merges) { places_.assign(std::bit_ceil(merges * 2 + 2), Merge{}); }

  // After reserve(). The last merge of a pair holds.
  void put(std::int32_t left, std::int32_t right, std::int32_t order, std::int32_t id) {
    const std::uint64_t pair = pair_of(left, right);
    std::size_t at = first_place(pair);
    while (places_[at].pair != kEmpty && places_[at].pair != pair) at = (at + 1) & (places_.size() - 1);
    places_[at] = {pair, order, id};
  }

  const Merge* find(std::int32_t left, std::int32_t right) const {  // null: the pair is not merged
    const std::uint64_t pair = pair_of(left, right);
    for (std::size_t at = first_place(pair); places_[at].pair != kEmpty; at = (at + 1) & (places_.size() - 1))
      if (places_[at].pair == pair) return &places_[at];
    return nullptr;
  }

 private:
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};  // ids are not negative
  static std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
    return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) | static_cast<std::uint32_t>(right);
  }
  std::size_t first_place(std::uint64_t pair) const {
    const std::uint64_t hash = pair * 0x9e3779b97f4a7c15U;
    return (hash ^ (hash >> 32)) & (places_.size() - 1);
  }

  std::vector<Merge> places_;
};

}  // namespace lockstep::data
