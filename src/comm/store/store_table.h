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
    std::size_t bytes =
        std::size_t{512} << 20;  // of values, those that were replaced and still leave for a slow reader included
  };
  // Shared with replies that are under way, so that a thousand of them cost no more than one.
  using Value = std::shared_ptr<const std::string>;

  StoreTable() = default;
  explicit StoreTable(const Limits& limits) : limits_(limits) {}

  Value find(const std::string& key) const;
  // The value that stands afterwards; null: the table is full.
  Value set(const std::string& key, std::string value);
  Value set_if_absent(const std::string& key, std::string value);
  // A counter of eight bytes. Nullopt: the key, or the amount, is none.
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
