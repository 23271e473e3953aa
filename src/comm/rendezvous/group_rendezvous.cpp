#include "src/comm/rendezvous/group_rendezvous.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/core/crypto.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "src/comm/net/host_names.h"

namespace lockstep {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::size_t kNamesInAMessage = 16;
// Rank 0's answer: the world's size, or an error after kProblem or kLost.
constexpr const char* kOutcome = "registered";
constexpr char kLost = '?';                  // marks a rank that has exited
constexpr const char* kAwaited = "awaited";  // the ranks that rank 0 waits for, once it has waited for some time
constexpr const char* kRanks = "rank/";      // the prefix of the keys that the ranks claim until they have joined
constexpr const char* kJoined = "joined/";
constexpr milliseconds kRestartTime(3000);
constexpr milliseconds kRestartPause(50);
// Rank 0's waits end earlier than the others' by this time, so that they receive its answer.
constexpr milliseconds kDecidesFirst(1000);
constexpr milliseconds kShortAnswer(1000);
constexpr milliseconds kNewsTime(300);  // until the store notices the end of a connection that a peer has noticed first
// The others check every kPresenceTime, and its reason would end with the store.
constexpr milliseconds kFarewellTime(1000);

milliseconds time_left(Clock::time_point deadline) {
  return std::max(std::chrono::ceil<milliseconds>(deadline - Clock::now()), milliseconds(0));
}

std::string key_of(int rank) { return kRanks + std::to_string(rank); }

std::string own_process() { return fmt::format("process {} on {}", getpid(), host_name()); }

// The value with which a rank claims its key: "<world size> <random> <rank> <who>". The random part distinguishes two
// processes with equal pids.
struct Registration {
  int world_size = 0;
  std::string random;
  int rank = 0;
  std::string who;

  std::string encode() const { return fmt::format("{} {} {} {}", world_size, random, rank, who); }
  static Registration decode(const std::string& text) {
    Registration registration;
    std::istringstream words(text);
    words >> registration.world_size >> registration.random >> registration.rank;
    std::getline(words >> std::ws, registration.who);
    return registration;
  }
};

Registration registration_of(const Place& place) {
  std::array<std::byte, 8> random;
  crypto::fill_random(random);
  return {place.world_size, crypto::hex(random), place.rank, own_process()};
}

// The message for a rank whose claim is abandoned: its own reason, or that it has exited.
std::string reason_of(const std::string& claim) {
  if (claim.starts_with(kProblem)) return claim.substr(1);
  const Registration lost = Registration::decode(claim);
  return fmt::format(
      "rank {} ({}) has exited: its connection to the store has ended; was it killed, or did its machine fail?",
      lost.rank, lost.who);
}

// Pods are restarted one by one; a user does not do that by hand for long.
milliseconds restart_time(int rank) {
  if (env::text("KUBERNETES_SERVICE_HOST")) return std::chrono::hours(24);
  return rank == 0 ? kRestartTime : kRestartTime + kDecidesFirst;
}

// While ranks are still arriving, one that had arrived and exited may be restarted for some time.
class Restarts {
 public:
  Restarts(const Place& place, Clock::time_point deadline) : place_(place), deadline_(deadline) {}

  // `wait` may throw ClaimAbandoned; then it is called again until that rank's time is over, which throws PeerLost.
  template <typename Wait> auto while_coming(Wait&& wait) {
    for (;;) {
      try {
        return wait();
      } catch (const ClaimAbandoned& gone) {
        await(gone.what());
      }
    }
  }

 private:
  void await(const std::string& claim) {
    const auto now = Clock::now();
    if (claim != lost_) {
      lost_ = claim;
      until_ = std::min(deadline_, now + restart_time(place_.rank));
      log::warn("rank {}: {} (it may be restarted within {:.0f} s)", place_.rank, reason_of(claim),
                std::chrono::duration<double>(until_ - now).count());
    }
    if (now >= until_) throw PeerLost("{}", reason_of(claim));
    std::this_thread::sleep_for(kRestartPause);
  }

  const Place& place_;
  const Clock::time_point deadline_;
  std::string lost_;
  Clock::time_point until_{};
};

std::string world_sizes_differ(int rank, int world_size, int other, int others_world_size) {
  return fmt::format("rank {} expects {} ranks, rank {} expects {}: WORLD_SIZE must be the same everywhere", rank,
                     world_size, other, others_world_size);
}

// "ranks 2, 3 of 4"
std::string names_of(const std::vector<int>& ranks, int world_size) {
  std::string names;
  for (std::size_t i = 0; i < std::min(ranks.size(), kNamesInAMessage); ++i)
    names += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  if (ranks.size() > kNamesInAMessage) names += fmt::format(" and {} more", ranks.size() - kNamesInAMessage);
  return fmt::format("{} {} of {}", ranks.size() == 1 ? "rank" : "ranks", names, world_size);
}

std::string did_not_come(const std::vector<int>& missing, int world_size, milliseconds timeout) {
  return fmt::format("{} did not arrive within {} s", names_of(missing, world_size),
                     static_cast<double>(timeout.count()) / 1000);
}

// The ranks from `first` on that have not set key prefix + rank yet. Also published for the others, so that not all
// have to look.
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
    return "rank 0's confirmation that all ranks have arrived";
  }
}

// Returns the key's value. Throws TimeoutError at the deadline, and ClaimAbandoned as soon as a rank has exited. `whom`
// names the awaited ranks, if the wait is long.
std::string get_patiently(Store& store, std::string_view key, Clock::time_point deadline, WaitNotice& notice,
                          const std::function<std::string()>& whom) {
  for (;;) {
    try {
      return store.get_while(kRanks, key, std::min(time_left(deadline), notice.until_next()));
    } catch (const TimeoutError&) {
      if (Clock::now() >= deadline) throw;
      notice.look(whom);
    }
  }
}

// "" if none is missing.
std::string name_missing(const std::vector<int>& missing, const Place& place, milliseconds timeout) {
  if (missing.empty()) return "";
  return did_not_come(missing, place.world_size, timeout) + ": were all ranks started, and all for this job's store?";
}

// Checks that rank `r` expects this rank's world size. Returns the error, or "".
std::string compare_sizes(const Place& place, int r, const std::string& registration) {
  const int world_size = Registration::decode(registration).world_size;
  return world_size == place.world_size ? "" : world_sizes_differ(place.rank, place.world_size, r, world_size);
}

// Waits until every rank has registered, or one expects another world size. Returns the error, or "".
std::string await_registrations(const Place& place, Store& store, milliseconds timeout, Clock::time_point deadline) {
  std::vector<int> missing;
  WaitNotice notice;
  Restarts restarts(place, deadline);
  for (int r = 0; r < place.world_size; ++r) {
    try {
      const std::string registration = restarts.while_coming([&] {
        return get_patiently(store, key_of(r), deadline, notice,
                             [&] { return still_awaited(place, store, kRanks, r); });
      });
      if (std::string problem = compare_sizes(place, r, registration); !problem.empty()) return problem;
    } catch (const TimeoutError&) {
      missing.push_back(r);
    }
  }
  if (missing.empty())
    restarts.while_coming([&] { store.check_claims(kRanks, std::max(time_left(deadline), kShortAnswer)); });
  return name_missing(missing, place, timeout);
}

// Rank 0 checks all registrations and publishes the result, so that every rank names the same cause.
std::string decide_outcome(const Place& place, Store& store, milliseconds timeout) {
  try {
    const std::string problem = await_registrations(place, store, timeout, Clock::now() + timeout);
    store.set(kOutcome, problem.empty() ? std::to_string(place.world_size) : kProblem + problem);
    return problem;
  } catch (const PeerLost& lost) {
    store.set(kOutcome, kLost + std::string(lost.what()));
    throw;
  }
}

std::string await_outcome(const Place& place, Store& store, milliseconds timeout) {
  const auto deadline = Clock::now() + timeout + kDecidesFirst;
  Restarts restarts(place, deadline);
  std::string outcome;
  try {
    WaitNotice notice;
    outcome = restarts.while_coming(
        [&] { return get_patiently(store, kOutcome, deadline, notice, [&] { return awaited_by_rank_zero(store); }); });
  } catch (const TimeoutError&) {
    const std::string problem = await_registrations(place, store, timeout, Clock::now());
    return problem.empty() ? "all ranks arrived, but rank 0 did not report it in time" : problem;
  }
  if (outcome[0] == kLost) throw PeerLost("{}", outcome.substr(1));
  if (outcome[0] == kProblem) return outcome.substr(1);
  const int world_size = std::stoi(outcome);
  return world_size == place.world_size ? "" : world_sizes_differ(place.rank, place.world_size, 0, world_size);
}

void await_all(const Place& place, Store& store, milliseconds timeout) {
  std::string problem;
  try {
    problem = place.rank == 0 ? decide_outcome(place, store, timeout) : await_outcome(place, store, timeout);
  } catch (const RendezvousError& error) {
    throw RendezvousError("rank {} of {}, waiting for the other ranks: {}", place.rank, place.world_size, error.what());
  } catch (const PeerLost& lost) {
    throw PeerLost("rank {}: {}", place.rank, lost.what());
  }
  if (!problem.empty()) throw RendezvousError("rank {}: {}", place.rank, problem);
}

}  // namespace

void register_rank(const Place& place, Store& store, milliseconds timeout) {
  const std::string mine = registration_of(place).encode();
  const std::string standing = store.claim(key_of(place.rank), mine);
  if (standing != mine)
    throw RendezvousError("rank {} is taken: {} registered it before {}; start every rank once, with a RANK of its own",
                          place.rank, Registration::decode(standing).who, own_process());
  try {
    await_all(place, store, timeout);
  } catch (const std::exception& error) {
    give_up(place, store, error.what());
    throw;
  }
}

std::string await_key(const BackendContext& context, std::string_view key, Clock::time_point deadline,
                      WaitNotice& notice, const std::function<std::string()>& whom) {
  try {
    return get_patiently(*context.store, key, deadline, notice, whom);
  } catch (const ClaimAbandoned& gone) {
    throw PeerLost("rank {}: {}", context.place.rank, reason_of(gone.what()));
  }
}

std::string await_value(const BackendContext& context, int from, std::string_view key, milliseconds grace) {
  const milliseconds timeout = context.store_timeout + grace;
  try {
    WaitNotice notice;
    return await_key(context, key, Clock::now() + timeout, notice, [&] {
      return fmt::format("{}, which has registered (store key {})", names_of({from}, context.place.world_size), key);
    });
  } catch (const TimeoutError&) {
    throw RendezvousError("rank {}: {}", context.place.rank, name_lost({from}, context.place.world_size, timeout, key));
  }
}

std::string name_lost(const std::vector<int>& missing, int world_size, milliseconds timeout, std::string_view key) {
  return fmt::format("{}, though {} had registered: stopped, or lost since? (store key {})",
                     did_not_come(missing, world_size, timeout), missing.size() == 1 ? "it" : "they", key);
}

void check_presence(const BackendContext& context, Clock::time_point deadline) {
  try {
    context.store->check_claims(kRanks, std::max(time_left(deadline), kShortAnswer));
  } catch (const ClaimAbandoned& gone) {
    throw PeerLost("rank {}: {}", context.place.rank, reason_of(gone.what()));
  }
}

void throw_if_a_rank_has_exited(const BackendContext& context) {
  const auto until = Clock::now() + kNewsTime;
  for (;; std::this_thread::sleep_for(kRestartPause)) {
    check_presence(context, until);
    if (Clock::now() >= until) return;
  }
}

void give_up(const Place& place, Store& store, const std::string& reason) noexcept {
  try {
    store.abandon(key_of(place.rank),
                  fmt::format("{}rank {} ({}) gave up: {}", kProblem, place.rank, own_process(), reason));
    if (StoreServer::is_in_this_process() && place.world_size > 1) std::this_thread::sleep_for(kFarewellTime);
  } catch (const std::exception&) {
    // The store has ended, or this rank has told the others already.
  }
}

void finish_rendezvous(const Place& place, Store& store, milliseconds timeout,
                       const std::function<void()>& all_have_come) {
  const auto deadline = Clock::now() + timeout;
  store.set(kJoined + std::to_string(place.rank), "1");
  store.keep(key_of(place.rank));  // from now on its exit does not affect the ranks that still join
  if (place.rank != 0) return;
  std::vector<int> missing;
  WaitNotice notice;
  for (int r = 0; r < place.world_size; ++r) {
    try {
      get_patiently(store, kJoined + std::to_string(r), deadline, notice,
                    [&] { return still_awaited(place, store, kJoined, r); });
    } catch (const TimeoutError&) {
      missing.push_back(r);
    } catch (const ClaimAbandoned& gone) {
      throw PeerLost("rank 0: after registering: {}", reason_of(gone.what()));
    }
  }
  if (const std::string problem = name_missing(missing, place, timeout); !problem.empty())
    throw RendezvousError("rank 0: after registering, {}", problem);
  all_have_come();  // first: a rank that arrives now must not find an empty place in which to wait
  store.erase_below("");
}

}  // namespace lockstep
