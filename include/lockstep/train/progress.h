// The progress of a training run, printed for people. Only rank 0 prints.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep::train {

struct ProgressOptions {
  bool enabled = true;                // rank 0
  std::optional<int> terminal_width;  // redraw one line of this width; nullopt: plain lines
  std::int64_t total_steps = 0;
  std::int64_t steps_per_epoch = 0;
  std::int64_t log_every = 20;  // steps between two lines of a log
  std::FILE* out = stdout;
  const char* samples = "images";  // the unit that is counted per second
  // Lines as Keras prints them, with steps of the epoch: see FitOptions::progress. Needs steps_per_epoch.
  bool keras = false;
};

// Terminal: one line, redrawn with '\\r': epoch (from 0 on), step, loss, images/s, time left. Log: `step 120 loss 1.234
// 5120 images/s`. Throws FileError if a line cannot be written (a full disk), because a run must not succeed without
// its output.
class Progress {
 public:
  explicit Progress(const ProgressOptions& options);
  ~Progress();  // ends a line that is still open
  void step(std::int64_t step, float loss, std::int64_t images_since_last_call);
  // The same for a loss on any device. Reading it waits for the device, and happens only where a line is due and in the
  // first step, which is not timed: a GPU computes one step while the host queues the next.
  void step(std::int64_t step, const Tensor& loss, std::int64_t images_since_last_call);
  void message(const std::string& line);  // prints it on its own line above the redrawn one

 private:
  using Clock = std::chrono::steady_clock;
  bool count(std::int64_t step, std::int64_t images);  // true: a line is due
  void draw(std::int64_t step, float loss);
  std::string log_line(std::int64_t step, float loss) const;
  std::string terminal_line(std::int64_t step, float loss) const;
  std::string time_left(std::int64_t steps) const;
  void write(const std::string& text);

  ProgressOptions options_;
  Clock::time_point last_drawn_{}, begin_ = Clock::now();  // begin_: start of the counted images
  std::int64_t first_step_ = -1, last_step_ = -1;          // of this run, to estimate the remaining time
  Clock::time_point first_time_{};
  std::int64_t images_ = 0;
  double images_per_second_ = 0;
  bool line_open_ = false;
};

// Returns LOCKSTEP_TERMINAL_WIDTH under lockrun, nullopt under other launchers, which forward the ranks' output, and
// else stdout's width if it is a terminal.
std::optional<int> terminal_width();

}  // namespace lockstep::train
#pragma GCC visibility pop
