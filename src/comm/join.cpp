#include "src/comm/join.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "lockstep/core/crypto.h"
#include "lockstep/core/error.h"
#include "src/comm/host_names.h"

namespace lockstep {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::size_t kNamesInAMessage = 16;
constexpr const char* kOutcome = "registered";  // rank 0's verdict: the world's size, or kProblem and what is wrong
constexpr char kProblem = '!';
constexpr const char* kAwaited = "awaited";  // whom rank 0 waits for, once it has waited for a while

milliseconds time_left(Clock::time_point deadline) {
  return std::max(std::chrono::ceil<milliseconds>(deadline - Clock::now()), milliseconds(0));
}

std::string who_am_i() { return fmt::format("process {} on {}", getpid(), host_name()); }

// "<world size> <random> <who>": the random part tells two processes with equal pids apart.
std::string registration(const Place& place) {
  std::array<std::byte, 8> random;
  crypto::fill_random(random);
  return fmt::format("{} {} {}", place.world_size, crypto::hex(random), who_am_i());
}

std::string who_of(const std::string& registration) { return registration.substr(registration.find(' ', registration.find(' ') + 1) + 1); }

std::string world_sizes_differ(int rank, int world_size, int other, int others_world_size) {
  return fmt::format("rank {} expects {} ranks, rank {} expects {}: WORLD_SIZE must be the same everywhere", rank, world_size, other,
                     others_world_size);
}

// "ranks 2, 3 of 4"
std::string names_of(const std::vector<int>& ranks, int world_size) {
  std::string names;
  for (std::size_t i = 0; i < std::min(ranks.size(), kNamesInAMessage); ++i) names += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  if (ranks.size() > kNamesInAMessage) names += fmt::format(" and {} more", ranks.size() - kNamesInAMessage);
  return fmt::format("{} {} of {}", ranks.size() == 1 ? "rank" : "ranks", names, world_size);
}

std::string did_not_come(const std::vector<int>& missing, int world_size, milliseconds timeout) {
  return fmt::format("{} did not come within {} s", names_of(missing, world_size), static_cast<double>(timeout.count()) / 1000);
}

// Those of the ranks from `first` on that have not set key prefix + rank by now. Told to the others, too, who would all have to ask.
std::string still_awaited(const Place& place, Store& store, const std::string& prefix, int first) {
  std::vector<int> missing;
  for (int r = first; r < place.world_size; ++r) {
    try {
      store.get(prefix + std::to_string(r), milliseconds(0));
    } catch (const TimeoutError&) {
      missing.push_back(r);
    }
  }
  const std::string names = missing.empty() ? "nobody" : names_of(missing, place.world_size);
  if (place.rank == 0) store.set(kAwaited, names);
  return names;
}

std::string awaited_by_rank_zero(Store& store) {
  try {
    return store.get(kAwaited, milliseconds(0));
  } catch (const TimeoutError&) {
    return "rank 0's word that all ranks have come";
  }
}

// "" when none is missing.
std::string name_missing(const std::vector<int>& missing, const Place& place, milliseconds timeout) {
  if (missing.empty()) return "";
  return did_not_come(missing, place.world_size, timeout) + ": were all ranks started, and all for this job's store?";
}

// Waits until key prefix + r exists for every rank r; what is wrong, or "". With `sizes_must_agree` the keys are
// registrations, and the first one that expects another world ends the wait.
std::string await_all(const Place& place, Store& store, const std::string& prefix, bool sizes_must_agree, milliseconds timeout,
                      Clock::time_point deadline) {
  std::vector<int> missing;
  WaitNotice notice;
  for (int r = 0; r < place.world_size; ++r) {
    try {
      const std::string value =
          get_patiently(store, prefix + std::to_string(r), deadline, notice, [&] { return still_awaited(place, store, prefix, r); });
      if (sizes_must_agree)
        if (const int world_size = std::stoi(value); world_size != place.world_size)
          return world_sizes_differ(place.rank, place.world_size, r, world_size);
    } catch (const TimeoutError&) {
      missing.push_back(r);
    }
  }
  return name_missing(missing, place, timeout);
}

// Rank 0 looks at all registrations and tells the others what came of it, so that every rank names the same culprit.
std::string judge(const Place& place, Store& store, milliseconds timeout) {
  const std::string problem = await_all(place, store, "rank/", true, timeout, Clock::now() + timeout);
  store.set(kOutcome, problem.empty() ? std::to_string(place.world_size) : kProblem + problem);
  return problem;
}

std::string await_verdict(const Place& place, Store& store, milliseconds timeout) {
  std::string outcome;
  try {
    WaitNotice notice;
    outcome = get_patiently(store, kOutcome, Clock::now() + timeout, notice, [&] { return awaited_by_rank_zero(store); });
  } catch (const TimeoutError&) {
    const std::string problem = await_all(place, store, "rank/", true, timeout, Clock::now());
    return problem.empty() ? "all ranks came, but rank 0 did not say so in time" : problem;
  }
  if (outcome[0] == kProblem) return outcome.substr(1);
  const int world_size = std::stoi(outcome);
  return world_size == place.world_size ? "" : world_sizes_differ(place.rank, place.world_size, 0, world_size);
}

}  // namespace

std::string get_patiently(Store& store, const std::string& key, Clock::time_point deadline, WaitNotice& notice,
                          const std::function<std::string()>& whom) {
  for (;;) {
    try {
      return store.get(key, std::min(time_left(deadline), notice.until_next()));
    } catch (const TimeoutError&) {
      if (Clock::now() >= deadline) throw;
      notice.look(whom);
    }
  }
}

void register_rank(const Place& place, Store& store, milliseconds timeout) {
  const std::string mine = registration(place);
  const std::string standing = store.set_if_absent("rank/" + std::to_string(place.rank), mine);
  if (standing != mine)
    throw RendezvousError("rank {} is taken: {} registered it before {}; start every rank once, with a RANK of its own", place.rank,
                          who_of(standing), who_am_i());
  std::string problem;
  try {
    problem = place.rank == 0 ? judge(place, store, timeout) : await_verdict(place, store, timeout);
  } catch (const RendezvousError& error) {
    throw RendezvousError("rank {} of {}, waiting for the other ranks: {}", place.rank, place.world_size, error.what());
  }
  if (!problem.empty()) throw RendezvousError("rank {}: {}", place.rank, problem);
}

std::string await_word(const BackendContext& context, int from, std::string_view key, milliseconds grace) {
  const milliseconds timeout = context.store_timeout + grace;
  try {
    WaitNotice notice;
    return get_patiently(*context.store, std::string(key), Clock::now() + timeout, notice, [&] {
      return fmt::format("{}, which has registered (store key {})", names_of({from}, context.place.world_size), key);
    });
  } catch (const TimeoutError&) {
    throw RendezvousError("rank {}: {}", context.place.rank, name_lost({from}, context.place.world_size, timeout, key));
  }
}

std::string name_lost(const std::vector<int>& missing, int world_size, milliseconds timeout, std::string_view key) {
  return fmt::format("{}, though {} had registered: stopped, or lost since? (store key {})", did_not_come(missing, world_size, timeout),
                     missing.size() == 1 ? "it" : "they", key);
}

void finish_joining(const Place& place, Store& store, milliseconds timeout) {
  store.set("joined/" + std::to_string(place.rank), "1");
  if (place.rank != 0) return;
  const std::string problem = await_all(place, store, "joined/", false, timeout, Clock::now() + timeout);
  if (!problem.empty()) throw RendezvousError("rank 0: after registering, {}", problem);
}

}  // namespace lockstep
