// The group error of ranks that share a control block.
#pragma once

#include <string_view>

#include "src/comm/call/group_error.h"
#include "src/comm/host/machine/control_block.h"

namespace lockstep::host {

// It is written to the control block for all ranks, and kept here as well: should a rank die
// while it writes, those who see the death for themselves still have their own.
class SharedGroupError {
 public:
  explicit SharedGroupError(ControlBlock& control) : control_(control) {}

  bool stands() const { return control_.group_error.state.load() == GroupErrorRecord::kWritten || local_.stands(); }
  // Writes it, unless there is one already, and wakes all sleepers.
  void declare(GroupErrorKind kind, std::string_view text);
  GroupError get() const;
  // Wakes all threads that sleep on the control block.
  void wake_all();

 private:
  ControlBlock& control_;
  LocalGroupError local_;
};

}  // namespace lockstep::host
