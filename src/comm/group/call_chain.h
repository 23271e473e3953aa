// The group's implementation of Work::then(): reserves the follower's place in the order of calls and queues it.
#pragma once

#include <memory>
#include <utility>

#include "lockstep/comm/work.h"
#include "lockstep/core/device.h"
#include "src/comm/group/process_group_impl.h"

namespace lockstep {

// Works hold a reference, and may outlive the group.
class ProcessGroup::Impl::Chain : public CallChain {
 public:
  explicit Chain(DeviceKind device) : device_(device) {}
  Work follow(const Work& first, Continuation next, bool makes_call) override;
  void set_group(std::weak_ptr<ProcessGroup> group) {
    group_ = std::move(group);
  }  // call it once, before any Work exists

 private:
  std::weak_ptr<ProcessGroup> group_;
  const DeviceKind device_;
};

}  // namespace lockstep
