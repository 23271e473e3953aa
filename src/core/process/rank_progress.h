// What a rank has reached, in memory that it shares with the lockrun that started it: lockrun can read it after any end
// of the rank, also by SIGKILL.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace lockstep {

struct RankProgress {
  static constexpr std::int64_t kNone = -1;

  std::atomic<std::int64_t> resumed_step{kNone};  // of the checkpoint that this attempt has loaded
  std::atomic<std::int64_t> saved_step{kNone};    // of the last checkpoint that it has saved
  std::atomic<std::int64_t> optimizer_steps{0};
  std::atomic<std::uint32_t> error_bytes{0};
  char error[1000]{};  // the text of the exception that ended it; error_bytes of it are written
};
static_assert(std::atomic<std::int64_t>::is_always_lock_free, "processes share it");

// The calls of a rank. They do nothing in a process that no lockrun started.
void note_resumed_step(std::int64_t step);
void note_saved_step(std::int64_t step);
void note_optimizer_step();
void note_error(const char* message);  // the first one stays

// The side of lockrun: one RankProgress for each of its ranks.
class ProgressPages {
 public:
  explicit ProgressPages(int ranks);  // throws Error
  ~ProgressPages();
  ProgressPages(const ProgressPages&) = delete;
  ProgressPages& operator=(const ProgressPages&) = delete;

  const RankProgress& of(int local_rank) const { return pages_[local_rank]; }
  std::string error_of(int local_rank) const;
  // The value of LOCKSTEP_PROGRESS for a rank: where it finds its page.
  std::string place_of(int local_rank) const;
  void clear();  // before the ranks of a new attempt; all earlier ones must have ended

 private:
  const int ranks_;
  int fd_ = -1;
  RankProgress* pages_ = nullptr;
};

}  // namespace lockstep
