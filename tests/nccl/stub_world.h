// The meeting points of the stub's communicators, whose ranks are threads of one process.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::testing {

// A copy of a rank's input, since its memory may be overwritten or freed before all have read it.
using Data = std::shared_ptr<const std::vector<std::byte>>;
inline Data copy_of(const void* data, std::size_t bytes) {
  const auto* const begin = static_cast<const std::byte*>(data);
  return std::make_shared<std::vector<std::byte>>(begin, begin + bytes);
}

// Ranks whose calls disagree get garbage, as from NCCL, up to the available bytes.
inline void take(void* to, const Data& from, std::size_t bytes) {
  if (from && bytes != 0) std::memcpy(to, from->data(), std::min(from->size(), bytes));
}

// The meeting point of one communicator's ranks: a table of their inputs to the current operation.
struct World {
  explicit World(int ranks) : offers(static_cast<std::size_t>(ranks)), aborted(static_cast<std::size_t>(ranks)) {}
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Data> offers;
  std::uint64_t arrived = 0, generation = 0;
  std::map<std::pair<int, int>, std::deque<Data>>
      mail;                   // data that was sent and not received yet, by sender and receiver
  std::vector<bool> aborted;  // by rank

  bool is_aborted(int rank) const { return aborted[static_cast<std::size_t>(rank)]; }

  bool is_aborted_now(int rank) {
    const std::lock_guard lock(mutex);
    return is_aborted(rank);
  }

  // Returns all ranks' inputs once all have arrived; returns false if aborted.
  bool meet(int rank, Data offer, std::vector<Data>& all) {
    std::unique_lock lock(mutex);
    offers[static_cast<std::size_t>(rank)] = std::move(offer);
    if (!await_all(lock, rank)) return false;
    all = offers;
    return await_all(lock, rank);
  }

 private:
  bool await_all(std::unique_lock<std::mutex>& lock, int rank) {
    const std::uint64_t mine = generation;
    if (++arrived == offers.size()) {
      arrived = 0;
      ++generation;
      changed.notify_all();
    } else {
      changed.wait(lock, [&] { return is_aborted(rank) || generation != mine; });
    }
    return !is_aborted(rank);
  }
};

// The world with this id, made by the first rank that requests it.
inline std::shared_ptr<World> world_of(const std::string& id, int ranks) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<World>> worlds;
  const std::lock_guard lock(mutex);
  auto& known = worlds[id];
  auto world = known.lock();
  if (!world) known = world = std::make_shared<World>(ranks);
  return world;
}

}  // namespace lockstep::testing
