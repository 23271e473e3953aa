// A rank's progress, in memory that it shares with the lockrun that started it: lockrun can read it after any end of
// the rank, also by SIGKILL.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "src/core/process/fd.h"

namespace lockstep {

struct ProgressPage {
  static constexpr std::int64_t kNone = -1;

  std::atomic<pid_t> writer{0};                   // the process that notes its progress here; 0: none has
  std::atomic<std::int64_t> resumed_step{kNone};  // of the last checkpoint that it has loaded
  std::atomic<std::int64_t> saved_step{kNone};    // of the last checkpoint that it has saved
  std::atomic<std::int64_t> optimizer_steps{0};   // since it loaded a checkpoint, or began
  std::atomic<std::uint32_t> error_bytes{0};
  char error[1000]{};  // the text of the exception that ended it; error_bytes of it are written
};
static_assert(std::atomic<std::int64_t>::is_always_lock_free, "processes share it");

// Calls for a rank. They do nothing in a process that no lockrun started, and in programs that a rank starts while it
// lives.
void note_resumed_step(std::int64_t step);
void note_saved_step(std::int64_t step);
void note_optimizer_step();
void note_error(const char* message);  // the first one stays

// For lockrun: one ProgressPage for each of its ranks, in one attempt. A process that the attempt leaves keeps writing
// to this memory, and not to that of the next attempt.
class ProgressPages {
 public:
  explicit ProgressPages(int count);  // throws Error
  ~ProgressPages();
  ProgressPages(const ProgressPages&) = delete;
  ProgressPages& operator=(const ProgressPages&) = delete;

  const ProgressPage& of(int number) const { return pages_[number]; }
  std::string error_of(int number) const;
  // The value of LOCKSTEP_PROGRESS for a rank: where it finds its page.
  std::string place_of(int number) const;

 private:
  const int count_;
  const Fd fd_;
  ProgressPage* pages_ = nullptr;
};

}  // namespace lockstep
