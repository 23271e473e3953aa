// What a training came to, epoch by epoch, and a plot of it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)
namespace lockstep::train {

// Values of an epoch or step under their names, in the order in which they are printed: "loss", "accuracy", "val_loss", "lr".
using Logs = std::vector<std::pair<std::string, double>>;

// The value of that name. Throws InvalidArgument that lists the names there are; `asks` is its first word: "EarlyStopping".
double value_of(const Logs& logs, const std::string& name, const char* asks);
// "loss 0.512, accuracy 0.871"; learning rates with their own digits.
std::string text_of(const Logs& logs);

class History {
 public:
  // One epoch more. A name that an epoch does not have is NaN there.
  void add(const Logs& logs);

  std::int64_t epochs() const { return epochs_; }
  std::vector<std::string> names() const;  // in the order of their first epochs
  // By epoch, the first is 0. Throws InvalidArgument that lists the names there are.
  const std::vector<double>& values(const std::string& name) const;

  // A table: a line an epoch.
  std::string text() const;
  // An SVG that stands alone: a panel for each name, in which "val_<name>" is the second curve. Values that are not finite are gaps.
  // Throws InvalidArgument before the first epoch.
  std::string svg() const;
  // The same into a file; FileError with path and reason. In a job: on rank 0 alone.
  void plot(const std::string& path) const;

 private:
  std::int64_t epochs_ = 0;
  std::vector<std::pair<std::string, std::vector<double>>> columns_;
};

}  // namespace lockstep::train
#pragma GCC visibility pop
