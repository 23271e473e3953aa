// Folds equal lines that several ranks write at about the same time into one. Pure: no descriptor, no clock.
//
// A line waits for a short time, and equal lines of other ranks join it meanwhile. Two lines are equal if their texts
// are, or if they differ only in each writer's own number in 'rank R'. The order of each rank's lines is kept: a rank
// joins no line above its last one.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "src/launch/supervise/failure_policy.h"

namespace lockstep::launch {

// Formats ascending numbers as "0-3" or "0,2".
std::string ranges_of(const std::vector<int>& numbers);

class LineFolder {
 public:
  struct Line {
    std::vector<int> ranks;  // in ascending order
    bool is_error = false;
    std::string text;
  };

  // `ranks`: the number of ranks that write.
  explicit LineFolder(int ranks) : ranks_(static_cast<std::size_t>(ranks)) {}

  // Adds a line. Returns the first lines if too many are waiting.
  std::vector<Line> add(int rank, bool is_error, std::string text, Clock::time_point now);

  // Removes and returns the lines whose time is over, and those that all ranks have written.
  std::vector<Line> take(Clock::time_point now);
  // Removes and returns the lines of `rank`, and those above them.
  std::vector<Line> take_until(int rank);
  std::vector<Line> take_all() { return take_first(lines_.size()); }

  static constexpr std::size_t kMostLines = 1 << 14, kMostBytes = 1 << 20;  // limits of the waiting lines
  // Number of comparisons of a new line with a waiting one since the start. A rank compares each waiting line at most
  // once, however many lines it adds.
  std::size_t comparisons() const { return comparisons_; }

  // The time at which take() has a line; nullopt: no line is waiting.
  std::optional<Clock::time_point> due() const;

  // A rank has failed: the others' last lines may be equal, and arrive one by one.
  void expect_last_words() { moment_ = kLastWords; }

 private:
  static constexpr std::chrono::milliseconds kMoment{100}, kLastWords{1000};

  struct Waiting {
    Line line;
    std::string key;           // the text with a marker for the writer's own number
    bool has_numbers = false;  // its ranks have written their own numbers
    Clock::time_point since{};
  };
  static bool joins(const Waiting& waiting, bool is_error, const std::string& text, const std::string& key);
  std::vector<Line> take_first(std::size_t count);
  bool is_too_much(std::size_t lines, std::size_t bytes) const { return lines > kMostLines || bytes > kMostBytes; }
  std::size_t first_below(int rank) const;

  std::size_t ranks_;
  std::chrono::milliseconds moment_ = kMoment;
  std::deque<Waiting> lines_;
  std::size_t taken_ = 0;           // number of lines before the first of lines_
  std::vector<std::size_t> below_;  // by rank: number of the line below its last one, counted from the start
  std::size_t bytes_ = 0;
  std::size_t comparisons_ = 0;
};

}  // namespace lockstep::launch
