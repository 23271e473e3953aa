// Shared memory for processes: rank 0 makes memfds and hands them over through sockets.
//
// That the handing-over works is what "the same machine" means: host names agree across containers that share nothing,
// and differ within one that shares all.
#pragma once

#include <memory>
#include <string>

#include "lockstep/comm/backend.h"
#include "src/comm/ring/fabric.h"

namespace lockstep::ring {

struct LocalMeeting {
  std::unique_ptr<LocalFabric> fabric;     // null: refused
  std::shared_ptr<SharedSegment> control;  // ControlLayout::bytes(world_size), the fabric's first segment
  std::string refusal;                     // the same on all ranks: which rank could not, and why
};

// Collective: all ranks come to the same result, through the store. With `reach_memory` the fabric has the ranks' ordinary
// memory, unless the system refuses that to one of them, which is logged.
LocalMeeting meet_on_this_machine(const BackendContext& context, bool reach_memory);

}  // namespace lockstep::ring
