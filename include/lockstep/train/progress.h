// The progress of a training run, for people. Only rank 0 prints.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#pragma GCC visibility push(default)
namespace lockstep {

struct ProgressOptions {
  bool enabled = true;                // rank 0
  std::optional<int> terminal_width;  // a line that is redrawn; absent: plain lines
  std::int64_t total_steps = 0;
  std::int64_t steps_per_epoch = 0;
  std::int64_t log_every = 20;  // steps between two lines of a log
  std::FILE* out = stdout;
  const char* samples = "images";  // what is counted in a second
};

// Throws FileError when a line cannot be written (a full disk): a run that nobody can read is no success.
// Terminal: one line, redrawn by '\r': epoch (from 0 on), step, loss, images/s, time left. Log: `step 120 loss 1.234
// 5120 images/s`.
class Progress {
 public:
  explicit Progress(const ProgressOptions& options);
  ~Progress();  // ends a line that is still open
  void step(std::int64_t step, float loss, std::int64_t images_since_last_call);
  void message(const std::string& line);  // a whole line of its own, above the redrawn one

 private:
  using Clock = std::chrono::steady_clock;
  void draw(std::int64_t step, float loss);
  void write(const std::string& text);

  ProgressOptions options_;
  Clock::time_point last_drawn_{}, begin_ = Clock::now();  // begin_: of the images counted
  std::int64_t first_step_ = -1;                           // of this run, for the time that is left
  Clock::time_point first_time_{};
  std::int64_t images_ = 0;
  double images_per_second_ = 0;
  bool line_open_ = false;
};

// LOCKSTEP_TERMINAL_WIDTH under lockrun; absent under other launchers, which pass on what ranks write; else stdout's
// width when it is a terminal.
std::optional<int> terminal_width();

}  // namespace lockstep
#pragma GCC visibility pop
