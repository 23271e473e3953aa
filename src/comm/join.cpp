#include "src/comm/join.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "lockstep/core/crypto.h"
#include "lockstep/core/error.h"

namespace lockstep {

namespace {

using Clock = std::chrono::steady_clock;

std::chrono::milliseconds time_left(Clock::time_point deadline) {
  return std::max(std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()), std::chrono::milliseconds(0));
}

std::string who_am_i() {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  return fmt::format("process {} on {}", getpid(), host.data());
}

// "<world size> <random> <who>": the random part tells two processes with equal pids apart.
std::string registration(const Place& place) {
  std::array<std::byte, 8> random;
  crypto::fill_random(random);
  return fmt::format("{} {} {}", place.world_size, crypto::hex(random), who_am_i());
}

std::string who_of(const std::string& registration) { return registration.substr(registration.find(' ', registration.find(' ') + 1) + 1); }

// Waits for key prefix + r of every rank; returns the values, or throws naming the ranks whose key did not come.
std::vector<std::string> await_all(const Place& place, Store& store, const std::string& prefix, std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  std::vector<std::string> values(static_cast<std::size_t>(place.world_size));
  std::string missing;
  for (int r = 0; r < place.world_size; ++r) {
    try {
      values[static_cast<std::size_t>(r)] = store.get(prefix + std::to_string(r), time_left(deadline));
    } catch (const TimeoutError&) {
      missing += (missing.empty() ? "" : ", ") + std::to_string(r);
    }
  }
  if (!missing.empty())
    throw RendezvousError(
        "rank {}: rank {} of {} did not come within {} s: were all ranks started, with the same MASTER_ADDR and MASTER_PORT?", place.rank,
        missing, place.world_size, static_cast<double>(timeout.count()) / 1000);
  return values;
}

}  // namespace

void register_rank(const Place& place, Store& store, std::chrono::milliseconds timeout) {
  const std::string mine = registration(place);
  const std::string standing = store.set_if_absent("rank/" + std::to_string(place.rank), mine);
  if (standing != mine)
    throw RendezvousError("rank {} is taken: {} registered it before {}; start every rank once, with a RANK of its own", place.rank,
                          who_of(standing), who_am_i());
  const std::vector<std::string> all = await_all(place, store, "rank/", timeout);
  for (std::size_t r = 0; r < all.size(); ++r)
    if (const int world_size = std::stoi(all[r]); world_size != place.world_size)
      throw RendezvousError("rank {} expects {} ranks, rank {} expects {}: WORLD_SIZE must be the same everywhere", place.rank,
                            place.world_size, r, world_size);
}

void finish_joining(const Place& place, Store& store, std::chrono::milliseconds timeout) {
  store.set("joined/" + std::to_string(place.rank), "1");
  if (place.rank == 0) await_all(place, store, "joined/", timeout);
}

}  // namespace lockstep
