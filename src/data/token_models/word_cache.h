// The ids of recent words. A table of fixed size: a word has one place, from which it drives out another word.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace lockstep::data {

class WordCache {
 public:
  // The word's ids; empty if it is not in the cache. Valid until the next put().
  std::span<const std::int32_t> find(std::string_view word) const {
    if (entries_.empty() || word.size() > kLongestWord) return {};
    const Entry& entry = entries_[place_of(word)];
    if (entry.size != word.size() || std::memcmp(entry.word.data(), word.data(), word.size()) != 0) return {};
    return {entry.ids.data(), entry.count};
  }

  // Longer words, and those with more ids, are not kept.
  void put(std::string_view word, std::span<const std::int64_t> ids) {
    if (word.empty() || word.size() > kLongestWord || ids.empty() || ids.size() > kMostIds) return;
    if (entries_.empty()) entries_.resize(kEntries);
    Entry& entry = entries_[place_of(word)];
    std::memcpy(entry.word.data(), word.data(), word.size());
    for (std::size_t i = 0; i < ids.size(); ++i) entry.ids[i] = static_cast<std::int32_t>(ids[i]);
    entry.size = static_cast<std::uint8_t>(word.size());
    entry.count = static_cast<std::uint8_t>(ids.size());
  }

 private:
  static constexpr std::size_t kLongestWord = 30, kMostIds = 8, kEntries = 1 << 14;  // of 64 bytes: 1 MiB
  struct alignas(64) Entry {
    std::array<char, kLongestWord> word;
    std::uint8_t size = 0, count = 0;
    std::array<std::int32_t, kMostIds> ids;
  };
  static_assert(sizeof(Entry) == 64);

  static std::size_t place_of(std::string_view word) {
    std::uint64_t hash = word.size();
    for (std::size_t at = 0; at < word.size(); at += 8) {
      std::uint64_t part = 0;
      std::memcpy(&part, word.data() + at, word.size() - at < 8 ? word.size() - at : 8);
      hash = (hash ^ part) * 0x9e3779b97f4a7c15U;
      hash ^= hash >> 29;
    }
    return hash % kEntries;
  }

  std::vector<Entry> entries_;
};

}  // namespace lockstep::data
