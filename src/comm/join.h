// Joining a group: every rank registers in the store, all wait until all have come and agree on the world's size.
#pragma once

#include <chrono>

#include "lockstep/comm/store.h"
#include "lockstep/core/place.h"

namespace lockstep {

// Throws RendezvousError: another process has this rank, ranks are missing at the timeout (they are named), or a rank
// expects another world size.
void register_rank(const Place& place, Store& store, std::chrono::milliseconds timeout);

// Says that this rank needs the store no more. Rank 0, which may host it, waits until all have said so.
void finish_joining(const Place& place, Store& store, std::chrono::milliseconds timeout);

}  // namespace lockstep
