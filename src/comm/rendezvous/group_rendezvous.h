// Joining a group: every rank registers in the store, and all wait until all have registered and agree on the world
// size. Until a rank has joined, its registration ends with its connection to the store, so that the others notice at
// once when it exits.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/backend_context.h"
#include "lockstep/comm/store.h"
#include "lockstep/core/place.h"
#include "src/comm/net/wait_notice.h"

namespace lockstep {

// How often a rank that waits for something other than the store checks that all are still present.
inline constexpr std::chrono::milliseconds kPresenceTime(250);

// Throws RendezvousError if another living process has this rank, if ranks are missing at the timeout (they are named),
// or if a rank expects another world size. While ranks are still arriving, one that has exited may be restarted: its
// successor takes its place within 3 s, in a Kubernetes pod until the timeout. After that time throws PeerLost that
// names it.
void register_rank(const Place& place, Store& store, std::chrono::milliseconds timeout);

// Returns the value of a key that ranks set after all have registered. Throws TimeoutError at the deadline, and
// PeerLost as soon as a rank has exited or given up, with that rank and its reason. `whom` names the awaited ranks, if
// the wait is long.
std::string await_key(const BackendContext& context, std::string_view key, WaitNotice::Clock::time_point deadline,
                      WaitNotice& notice, const std::function<std::string()>& whom);

// The first character of a value that is an error message.
inline constexpr char kProblem = '!';

// Returns the value that rank `from` sets under `key`, for the others, after all have registered. Waits for the
// context's store_timeout and `grace`; then throws RendezvousError that names the rank.
std::string await_value(const BackendContext& context, int from, std::string_view key,
                        std::chrono::milliseconds grace = {});

// "ranks 2, 3 of 4 did not arrive within 5 s, though they had registered: ...", for ranks that did not set `key`.
std::string name_lost(const std::vector<int>& missing, int world_size, std::chrono::milliseconds timeout,
                      std::string_view key);

// Throws PeerLost if a rank has exited or given up; RendezvousError if the store itself has ended or does not answer by
// the deadline.
void check_presence(const BackendContext& context, std::chrono::steady_clock::time_point deadline);
// The same for a rank whose connection to a peer has ended: that peer may have left because of another rank.
void throw_if_a_rank_has_exited(const BackendContext& context);
// Publishes why this rank does not join.
void give_up(const Place& place, Store& store, const std::string& reason) noexcept;

// Announces that this rank needs the store no more. Rank 0 waits for all of these announcements, calls `all_have_come`,
// and erases all keys in `store`.
void finish_rendezvous(const Place& place, Store& store, std::chrono::milliseconds timeout,
                       const std::function<void()>& all_have_come);

}  // namespace lockstep
