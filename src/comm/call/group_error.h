// The first failure of a group, which ended it; all ranks throw the same text.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

namespace lockstep {

enum class GroupErrorKind : std::uint32_t { kNone, kMismatch, kTimeout, kPeerLost, kFailed };

struct GroupError {
  GroupErrorKind kind = GroupErrorKind::kNone;
  std::string text;
};

// Throws the error that belongs to its kind. A mismatch's text is complete; the text of the others begins with `doing`,
// the call of this rank.
[[noreturn]] void throw_group_error(const GroupError& group_error, std::string_view doing);

// A group error within one process. Any thread may write it; the first one is kept.
class LocalGroupError {
 public:
  bool stands() const { return stands_.load(); }
  void declare(GroupErrorKind kind, std::string_view text);
  GroupError get() const;

 private:
  std::atomic<bool> stands_{false};
  mutable std::mutex mutex_;
  GroupError group_error_;
};

}  // namespace lockstep
