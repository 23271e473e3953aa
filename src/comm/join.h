// Joining a group: every rank registers in the store, all wait until all have come and agree on the world's size.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/backend.h"
#include "lockstep/comm/store.h"
#include "lockstep/core/place.h"
#include "src/comm/wait_notice.h"

namespace lockstep {

// Throws RendezvousError: another process has this rank, ranks are missing at the timeout (they are named), or a rank
// expects another world size.
void register_rank(const Place& place, Store& store, std::chrono::milliseconds timeout);

// What rank `from` sets under `key`, for the others, after all have registered. Waits for the context's store_timeout and `grace`; throws
// RendezvousError that names the rank then.
std::string await_word(const BackendContext& context, int from, std::string_view key, std::chrono::milliseconds grace = {});

// The key's value, awaited until the deadline; TimeoutError then. `whom` says for whom the wait is, when it is a long one.
std::string get_patiently(Store& store, const std::string& key, WaitNotice::Clock::time_point deadline, WaitNotice& notice,
                          const std::function<std::string()>& whom);

// "ranks 2, 3 of 4 did not come within 5 s, though they had registered: ...", of ranks that did not set `key`.
std::string name_lost(const std::vector<int>& missing, int world_size, std::chrono::milliseconds timeout, std::string_view key);

// Says that this rank needs the store no more. Rank 0, which may host it, waits until all have said so.
void finish_joining(const Place& place, Store& store, std::chrono::milliseconds timeout);

}  // namespace lockstep
