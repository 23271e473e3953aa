// The group's side of Work::then(): takes the follower's place in the order of calls and queues it.
#pragma once

#include <memory>
#include <utility>

#include "lockstep/comm/work.h"
#include "lockstep/core/device.h"
#include "src/comm/group/process_group_impl.h"

namespace lockstep {

// Works hold it, and may outlive the group.
class ProcessGroup::Impl::Chain : public CallChain {
 public:
  explicit Chain(DeviceKind device) : device_(device) {}
  Work follow(const Work& first, Continuation next, bool makes_call) override;
  void set_group(std::weak_ptr<ProcessGroup> group) { group_ = std::move(group); }  // once, before any Work

 private:
  std::weak_ptr<ProcessGroup> group_;
  const DeviceKind device_;
};

}  // namespace lockstep
