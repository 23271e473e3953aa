// The group error of ranks that share a control block.
#pragma once

#include <string_view>

#include "src/comm/call/group_error.h"
#include "src/comm/host/machine/control_block.h"

namespace lockstep::host {

// The error is written to the control block for all ranks, and also stored here: if a rank dies while it writes, each
// rank that sees the death still has its own error.
class SharedGroupError {
 public:
  explicit SharedGroupError(ControlBlock& control) : control_(control) {}

  bool stands() const { return control_.group_error.state.load() == GroupErrorRecord::kWritten || local_.stands(); }
  // Writes the error unless there is one already, and wakes all sleepers.
  void declare(GroupErrorKind kind, std::string_view text);
  GroupError get() const;
  // Wakes all threads that sleep on the control block.
  void wake_all();

 private:
  ControlBlock& control_;
  LocalGroupError local_;
};

}  // namespace lockstep::host
