#include "src/comm/call/group_error.h"

#include "lockstep/core/error.h"

namespace lockstep {

void throw_group_error(const GroupError& group_error, std::string_view doing) {
  switch (group_error.kind) {
    case GroupErrorKind::kMismatch: throw MismatchError("{}", group_error.text);
    case GroupErrorKind::kTimeout: throw TimeoutError("{}: {}", doing, group_error.text);
    case GroupErrorKind::kFailed: throw Error("{}: {}", doing, group_error.text);
    case GroupErrorKind::kPeerLost:
    case GroupErrorKind::kNone: break;
  }
  throw PeerLost("{}: {}", doing, group_error.text);
}

void LocalGroupError::declare(GroupErrorKind kind, std::string_view text) {
  const std::lock_guard lock(mutex_);
  if (stands_.load()) return;
  group_error_ = {kind, std::string(text)};
  stands_.store(true);
}

GroupError LocalGroupError::get() const {
  const std::lock_guard lock(mutex_);
  return group_error_;
}

}  // namespace lockstep
