// Why a group is over: the first failure, told the same way on every rank.
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

// Throws it as an error of its kind. A mismatch speaks for itself; the others begin with `doing`, what this rank was
// at.
[[noreturn]] void throw_group_error(const GroupError& group_error, std::string_view doing);

// A group error inside one process; any thread may write it, the first one stays.
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
