#include "src/comm/store/store_table.h"

#include <cstring>

namespace lockstep {

StoreTable::Value StoreTable::find(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : found->second;
}

StoreTable::Value StoreTable::set(const std::string& key, std::string value) {
  const auto found = values_.find(key);
  const bool is_new = found == values_.end();
  // A value that only the table holds makes room for the one that replaces it.
  const std::size_t freed = is_new || found->second.use_count() > 1 ? 0 : found->second->size();
  if ((is_new && values_.size() >= limits_.keys) || *bytes_ - freed + value.size() > limits_.bytes) return nullptr;
  value.shrink_to_fit();
  *bytes_ += value.size();
  const Value stored(new std::string(std::move(value)), [bytes = bytes_](const std::string* text) {
    *bytes -= text->size();
    delete text;
  });
  if (is_new)
    values_.emplace(key, stored);
  else
    found->second = stored;
  return stored;
}

StoreTable::Value StoreTable::set_if_absent(const std::string& key, std::string value) {
  const Value standing = find(key);
  return standing ? standing : set(key, std::move(value));
}

void StoreTable::erase_below(std::string_view prefix) {
  std::erase_if(values_, [&](const auto& entry) { return std::string_view(entry.first).starts_with(prefix); });
}

std::optional<StoreTable::Value> StoreTable::add(const std::string& key, const std::string& amount) {
  std::uint64_t sum = 0, more = 0;  // may wrap
  const Value before = find(key);
  if (amount.size() != sizeof more || (before && !before->empty() && before->size() != sizeof sum)) return std::nullopt;
  std::memcpy(&more, amount.data(), sizeof more);
  if (before && !before->empty()) std::memcpy(&sum, before->data(), sizeof sum);
  sum += more;
  return set(key, std::string(reinterpret_cast<const char*>(&sum), sizeof sum));
}

}  // namespace lockstep
