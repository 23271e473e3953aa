// Joining a group: every rank registers in the store, all wait until all have come and agree on the world's size. Until
// it has joined, its registration stands only as long as its connection to the store: that a rank has gone, the others
// learn at once.
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

// So often a rank that waits for something else than the store looks whether all are still there.
inline constexpr std::chrono::milliseconds kPresenceTime(250);

// Throws RendezvousError: another process that is alive has this rank, ranks are missing at the timeout (they are
// named), or a rank expects another world size. While ranks are still coming, one that has gone may be started again:
// its successor takes its place within 3 s, in a Kubernetes pod until the timeout; then PeerLost names it.
void register_rank(const Place& place, Store& store, std::chrono::milliseconds timeout);

// The value of a key that ranks set after all have registered, awaited until the deadline. Throws TimeoutError then, or
// PeerLost as soon as a rank has gone or given up: that rank is named, with its reason. `whom` names the ranks that it
// waits for, when the wait is a long one.
std::string await_key(const BackendContext& context, std::string_view key, WaitNotice::Clock::time_point deadline,
                      WaitNotice& notice, const std::function<std::string()>& whom);

// Begins a word that says what went wrong where another one was expected.
inline constexpr char kProblem = '!';

// The value that rank `from` sets under `key`, for the others, after all have registered. Waits for the context's
// store_timeout and `grace`; throws RendezvousError that names the rank then.
std::string await_word(const BackendContext& context, int from, std::string_view key,
                       std::chrono::milliseconds grace = {});

// "ranks 2, 3 of 4 did not come within 5 s, though they had registered: ...", of ranks that did not set `key`.
std::string name_lost(const std::vector<int>& missing, int world_size, std::chrono::milliseconds timeout,
                      std::string_view key);

// Throws PeerLost when a rank has gone or given up; RendezvousError when the store itself is gone, or does not answer
// by the deadline.
void check_presence(const BackendContext& context, std::chrono::steady_clock::time_point deadline);
// The same for one whose connection to a peer has ended: that peer may have left because of another one.
void blame_who_has_gone(const BackendContext& context);
// Tells the others why this rank does not join.
void give_up(const Place& place, Store& store, const std::string& reason) noexcept;

// Says that this rank needs the store no more. Rank 0 waits until all have said so, notes it with `all_have_come`, and
// erases all that is in `store`.
void finish_rendezvous(const Place& place, Store& store, std::chrono::milliseconds timeout,
                       const std::function<void()>& all_have_come);

}  // namespace lockstep
