#include "src/comm/host/machine/shared_group_error.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "src/comm/host/machine/futex.h"

namespace lockstep::host {

namespace {

using Clock = std::chrono::steady_clock;

// For a rank that writes a group error and has to wait for its core.
constexpr auto kWritingTime = std::chrono::milliseconds(200);

}  // namespace

void SharedGroupError::declare(GroupErrorKind kind, std::string_view text) {
  GroupErrorRecord& record = control_.group_error;
  std::uint32_t open = GroupErrorRecord::kOpen;
  if (record.state.compare_exchange_strong(open, GroupErrorRecord::kBeingWritten)) {
    record.kind = kind;
    const std::size_t length = std::min(text.size(), sizeof(record.text) - 1);
    std::memcpy(record.text, text.data(), length);
    record.text[length] = '\0';
    record.state.store(GroupErrorRecord::kWritten);  // publishes kind and text: readers load the state first
  }
  // Another rank is writing: its group error is valid for all ranks, unless it dies before it is complete.
  for (const auto until = Clock::now() + kWritingTime;
       record.state.load() != GroupErrorRecord::kWritten && Clock::now() < until;)
    sched_yield();
  local_.declare(kind, text);
  wake_all();
}

GroupError SharedGroupError::get() const {
  const GroupErrorRecord& record = control_.group_error;
  if (record.state.load() == GroupErrorRecord::kWritten) return {record.kind, record.text};
  return local_.get();
}

void SharedGroupError::wake_all() {
  control_.wake_word.fetch_add(1);
  futex_wake_all(control_.wake_word);
}

}  // namespace lockstep::host
