#include "src/comm/store/memory_store.h"

#include <algorithm>

#include "lockstep/core/error.h"

namespace lockstep {

void MemoryStore::set(std::string_view key, std::string_view value) {
  const std::lock_guard lock(mutex_);
  values_[std::string(key)] = value;
  changed_.notify_all();
}

std::string MemoryStore::get(std::string_view key, std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  const auto time =
      std::clamp(timeout, std::chrono::milliseconds(0), std::chrono::milliseconds(std::chrono::hours(24 * 30)));
  if (!changed_.wait_for(lock, time, [&] { return values_.find(key) != values_.end(); }))
    throw TimeoutError("store of this process: no process set '{}' within {} ms", key, timeout.count());
  return values_.find(key)->second;
}

std::int64_t MemoryStore::add(std::string_view key, std::int64_t amount) {
  const std::lock_guard lock(mutex_);
  return counters_[std::string(key)] += amount;
}

std::string MemoryStore::set_if_absent(std::string_view key, std::string_view value) {
  const std::lock_guard lock(mutex_);
  const auto [entry, added] = values_.emplace(key, value);
  if (added) changed_.notify_all();
  return entry->second;
}

void MemoryStore::erase_below(std::string_view prefix) {
  if (prefix.empty()) throw InvalidArgument("store of this process: erase_below() needs a prefix that is not empty");
  const std::lock_guard lock(mutex_);
  const auto is_below = [&](const auto& entry) { return entry.first.starts_with(prefix); };
  std::erase_if(values_, is_below);
  std::erase_if(counters_, is_below);
}

std::size_t MemoryStore::keys() const {
  const std::lock_guard lock(mutex_);
  return values_.size() + counters_.size();
}

}  // namespace lockstep
