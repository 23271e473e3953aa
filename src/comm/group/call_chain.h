// The group's side of Work::then(): takes the follower's place in the order of calls and queues it.
#pragma once

#include <atomic>

#include "lockstep/comm/work.h"
#include "lockstep/core/device.h"
#include "src/comm/group/process_group_impl.h"

namespace lockstep {

// Works hold it, and may outlive the group.
class ProcessGroup::Impl::Chain : public CallChain {
 public:
  Chain(Impl& group, DeviceKind device) : group_(&group), device_(device) {}
  Work follow(const Work& first, Continuation next, bool makes_call) override;
  void end() { group_ = nullptr; }

 private:
  std::atomic<Impl*> group_;  // null: it is gone
  const DeviceKind device_;
};

}  // namespace lockstep
