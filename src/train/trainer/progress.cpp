#include "lockstep/train/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "lockstep/comm/bootstrap.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"

namespace lockstep::train {

namespace {

constexpr auto kRedrawEvery = std::chrono::milliseconds(100);

// Returns "1:02:03" or "2:03".
std::string clock_text(double seconds) {
  const auto whole = static_cast<long long>(std::max(seconds, 0.0) + 0.5);
  return whole >= 3600 ? fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60)
                       : fmt::format("{}:{:02}", whole / 60, whole % 60);
}

// Keras' bar: 30 characters.
std::string bar(std::int64_t done, std::int64_t all) {
  constexpr std::int64_t kWidth = 30;
  const auto filled = static_cast<std::size_t>(kWidth * done / std::max<std::int64_t>(all, 1));
  std::string text = std::string(filled, '=') + std::string(kWidth - filled, '.');
  if (filled > 0 && done < all) text[filled - 1] = '>';
  return "[" + text + "]";
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

Progress::Progress(const ProgressOptions& options) : options_(options) {}

Progress::~Progress() {
  if (line_open_) std::fputc('\n', options_.out);
  if (options_.enabled) std::fflush(options_.out);
}

void Progress::message(const std::string& line) {
  if (!options_.enabled) return;
  write(fmt::format("{}{}\n", line_open_ ? "\r\x1b[K" : "", line));  // the next step redraws the line
  line_open_ = false;
  last_drawn_ = {};
}

void Progress::step(std::int64_t step, float loss, std::int64_t images_since_last_call) {
  if (count(step, images_since_last_call)) draw(step, loss);
}

void Progress::step(std::int64_t step, const Tensor& loss, std::int64_t images_since_last_call) {
  if (options_.enabled && first_step_ < 0) loss.item();  // before the clock starts
  if (count(step, images_since_last_call)) draw(step, loss.item());
}

bool Progress::count(std::int64_t step, std::int64_t images) {
  if (!options_.enabled) return false;
  last_step_ = step;
  if (first_step_ < 0) {  // the first step is warm-up and not counted
    first_step_ = step;
    first_time_ = begin_ = Clock::now();
  } else {
    images_ += images;
  }
  if (options_.keras && !options_.terminal_width) {  // the end of an epoch has a line of its own
    const std::int64_t done = (step - 1) % options_.steps_per_epoch + 1;
    return done % options_.log_every == 0 && done != options_.steps_per_epoch;
  }
  const bool is_last = step == options_.total_steps;
  return options_.terminal_width ? is_last || Clock::now() >= last_drawn_ + kRedrawEvery
                                 : is_last || step % options_.log_every == 0;
}

void Progress::write(const std::string& text) {
  if (std::fputs(text.c_str(), options_.out) < 0 || std::fflush(options_.out) != 0)
    throw FileError("the progress cannot be written: {}", std::strerror(errno));
}

// The steps until now are timed here and not in count(): a loss that was read in between has waited for them.
void Progress::draw(std::int64_t step, float loss) {
  if (images_ > 0) {
    const double now = static_cast<double>(images_) / std::max(seconds_since(begin_), 1e-9);
    images_per_second_ =
        images_per_second_ == 0 || !options_.terminal_width ? now : 0.8 * images_per_second_ + 0.2 * now;
    images_ = 0;
    begin_ = Clock::now();
  }
  if (!options_.terminal_width) return write(log_line(step, loss) + "\n");
  std::string line = terminal_line(step, loss);
  line.resize(std::min(line.size(), static_cast<std::size_t>(std::max(*options_.terminal_width - 1, 1))));
  write(fmt::format("\r{}\x1b[K", line));
  line_open_ = true;
  last_drawn_ = Clock::now();
}

std::string Progress::log_line(std::int64_t step, float loss) const {
  if (options_.keras)
    return fmt::format("{}/{} - loss: {:.4f} - {:.0f} {}/s", (step - 1) % options_.steps_per_epoch + 1,
                       options_.steps_per_epoch, loss, images_per_second_, options_.samples);
  return fmt::format("step {} loss {:.3f} {:.0f} {}/s", step, loss, images_per_second_, options_.samples);
}

std::string Progress::terminal_line(std::int64_t step, float loss) const {
  if (options_.keras) {
    const std::int64_t done = (step - 1) % options_.steps_per_epoch + 1, all = options_.steps_per_epoch;
    return fmt::format("{}/{} {} - ETA: {} - loss: {:.4f} - {:.0f} {}/s", done, all, bar(done, all),
                       time_left(step > first_step_ ? all - done : 0), loss, images_per_second_, options_.samples);
  }
  std::string line;
  if (options_.steps_per_epoch > 0) line += fmt::format("epoch {}  ", (step - 1) / options_.steps_per_epoch);
  line += fmt::format("step {}/{}  loss {:.3f}  {:.0f} {}/s", step, options_.total_steps, loss, images_per_second_,
                      options_.samples);
  if (step > first_step_) line += fmt::format("  {} left", time_left(options_.total_steps - step));
  return line;
}

// At the mean pace of this run.
std::string Progress::time_left(std::int64_t steps) const {
  const std::int64_t counted = std::max<std::int64_t>(last_step_ - first_step_, 1);
  return clock_text(seconds_since(first_time_) / static_cast<double>(counted) * static_cast<double>(steps));
}

std::optional<int> terminal_width() {
  if (const auto width = env::integer(env::kTerminalWidth, 1, 10'000)) return static_cast<int>(*width);
  if (is_rank(env::text)) return std::nullopt;  // Open MPI gives its ranks a terminal whose output may end in a file
  winsize size{};
  if (isatty(STDOUT_FILENO) == 0 || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return std::nullopt;
  return size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace lockstep::train
