// Why a group is over: the first failure, told the same way on every rank.
#pragma once

#include <atomic>
#include <exception>
#include <mutex>
#include <string>
#include <string_view>

#include "src/comm/ring/control_block.h"

namespace lockstep::ring {

struct Verdict {
  VerdictKind kind = VerdictKind::kNone;
  std::string text;
};

// Throws the error of the verdict. A mismatch speaks for itself; the others begin with `doing`, what this rank was at.
[[noreturn]] void throw_verdict(const Verdict& verdict, std::string_view doing);

// A verdict inside one process; any thread may write it, the first one stays.
class LocalVerdict {
 public:
  bool stands() const { return stands_.load(); }
  void declare(VerdictKind kind, std::string_view text);
  Verdict get() const;

 private:
  std::atomic<bool> stands_{false};
  mutable std::mutex mutex_;
  Verdict verdict_;
};

// The verdict of ranks that share a control block. It is written there for all, and kept here as well: should a rank die
// while it writes, those who see the death for themselves still have their own.
class SharedVerdict {
 public:
  explicit SharedVerdict(ControlBlock& control) : control_(control) {}

  bool stands() const { return control_.verdict.state.load() == VerdictRecord::kWritten || local_.stands(); }
  // Writes it, unless there is one already, and wakes all sleepers.
  void declare(VerdictKind kind, std::string_view text);
  Verdict get() const;
  // Wakes everybody who sleeps on the control block.
  void ring_bell();

 private:
  ControlBlock& control_;
  LocalVerdict local_;
};

}  // namespace lockstep::ring
