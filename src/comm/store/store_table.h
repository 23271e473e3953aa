// The contents of a store: values by key, within limits. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace lockstep {

class StoreTable {
 public:
  struct Limits {
    std::size_t keys = 100'000;
    // The bytes of values, including replaced ones that are still being sent to a slow reader.
    std::size_t bytes = std::size_t{512} << 20;
  };
  // Shared with replies that are under way, so that a thousand of them use no more memory than one.
  using Value = std::shared_ptr<const std::string>;

  StoreTable() = default;
  explicit StoreTable(const Limits& limits) : limits_(limits) {}

  Value find(const std::string& key) const;
  // Returns the key's value afterwards; null: the table is full.
  Value set(const std::string& key, std::string value);
  Value set_if_absent(const std::string& key, std::string value);
  // A counter of eight bytes. nullopt: the key's value, or `amount`, is not a counter.
  std::optional<Value> add(const std::string& key, const std::string& amount);

  void erase_below(std::string_view prefix);

  std::size_t keys() const { return values_.size(); }
  std::size_t bytes() const { return *bytes_; }

 private:
  Limits limits_;
  std::shared_ptr<std::size_t> bytes_ = std::make_shared<std::size_t>(0);  // outlives the values that subtract from it
  std::unordered_map<std::string, Value> values_;
};

}  // namespace lockstep
