// What a training came to, epoch by epoch, and a plot of it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)
namespace lockstep::train {

// Values of an epoch or step under their names, in the order in which they are printed: "loss", "accuracy", "val_loss",
// "lr".
using Logs = std::vector<std::pair<std::string, double>>;

// The value of that name. Throws InvalidArgument that lists the names there are; `asks` is its first word:
// "EarlyStopping".
double value_of(const Logs& logs, const std::string& name, const char* asks);
// "loss 0.512, accuracy 0.871"; learning rates with their own digits.
std::string text_of(const Logs& logs);

class History {
 public:
  // One epoch more, by its number; without one, the next. A name that an epoch does not have is NaN there.
  void add(std::int64_t epoch, const Logs& logs);
  void add(const Logs& logs) { add(numbers_.empty() ? 0 : numbers_.back() + 1, logs); }

  std::int64_t epochs() const { return static_cast<std::int64_t>(numbers_.size()); }
  // Of each epoch that was added, the number that callbacks, log and TensorBoard have for it: from 0 on. A training
  // that resumes has those of before, too.
  const std::vector<std::int64_t>& numbers() const { return numbers_; }
  std::vector<std::string> names() const;  // in the order of their first epochs
  // In the order of numbers(). Throws InvalidArgument that lists the names there are.
  const std::vector<double>& values(const std::string& name) const;

  // A table: a line an epoch.
  std::string text() const;
  // An SVG that stands alone: a panel for each name, in which "val_<name>" is the second curve. Values that are not
  // finite are gaps. Throws InvalidArgument before the first epoch.
  std::string svg() const;
  // The same into a file; FileError with path and reason. In a job: on rank 0 alone.
  void plot(const std::string& path) const;

 private:
  std::vector<std::int64_t> numbers_;
  std::vector<std::pair<std::string, std::vector<double>>> columns_;
};

}  // namespace lockstep::train
#pragma GCC visibility pop
