#include "src/comm/ring/verdict.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "lockstep/core/error.h"
#include "src/comm/ring/futex.h"

namespace lockstep::ring {

namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kWritingTime = std::chrono::milliseconds(200);  // of a verdict by a rank that has to wait for its core

}  // namespace

void throw_verdict(const Verdict& verdict, std::string_view doing) {
  switch (verdict.kind) {
    case VerdictKind::kMismatch:
      throw MismatchError("{}", verdict.text);
    case VerdictKind::kTimeout:
      throw TimeoutError("{}: {}", doing, verdict.text);
    case VerdictKind::kFailed:
      throw Error("{}: {}", doing, verdict.text);
    case VerdictKind::kPeerLost:
    case VerdictKind::kNone:
      break;
  }
  throw PeerLost("{}: {}", doing, verdict.text);
}

void LocalVerdict::declare(VerdictKind kind, std::string_view text) {
  const std::lock_guard lock(mutex_);
  if (stands_.load()) return;
  verdict_ = {kind, std::string(text)};
  stands_.store(true);
}

Verdict LocalVerdict::get() const {
  const std::lock_guard lock(mutex_);
  return verdict_;
}

void SharedVerdict::declare(VerdictKind kind, std::string_view text) {
  VerdictRecord& record = control_.verdict;
  std::uint32_t open = VerdictRecord::kOpen;
  if (record.state.compare_exchange_strong(open, VerdictRecord::kBeingWritten)) {
    record.kind = kind;
    const std::size_t length = std::min(text.size(), sizeof(record.text) - 1);
    std::memcpy(record.text, text.data(), length);
    record.text[length] = '\0';
    record.state.store(VerdictRecord::kWritten);
  }
  // Another rank is writing: its verdict is everybody's, unless it dies before it is done.
  for (const auto until = Clock::now() + kWritingTime; record.state.load() != VerdictRecord::kWritten && Clock::now() < until;)
    sched_yield();
  local_.declare(kind, text);
  ring_bell();
}

Verdict SharedVerdict::get() const {
  const VerdictRecord& record = control_.verdict;
  if (record.state.load() == VerdictRecord::kWritten) return {record.kind, record.text};
  return local_.get();
}

void SharedVerdict::ring_bell() {
  control_.bell.fetch_add(1);
  futex_wake_all(control_.bell);
}

}  // namespace lockstep::ring
