// The results of a training, epoch by epoch, and a plot of them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)
namespace lockstep::train {

// Named values of an epoch or step, in print order: "loss", "accuracy", "val_loss", "lr".
using Logs = std::vector<std::pair<std::string, double>>;

// Returns the value of that name. Throws InvalidArgument with the existing names if there is none. `asks` is the first
// word of the message: "EarlyStopping".
double value_of(const Logs& logs, const std::string& name, const char* asks);
// Returns "loss 0.512, accuracy 0.871"; learning rates are printed with more digits.
std::string text_of(const Logs& logs);
// As Keras prints it: "loss: 0.4512 - accuracy: 0.8611 - lr: 1.0000e-03", with an exponent up to 0.001.
std::string keras_text_of(const Logs& logs);

class History {
 public:
  // Adds an epoch by its number, or as the next one. A name that an epoch does not have is NaN there.
  void add(std::int64_t epoch, const Logs& logs);
  void add(const Logs& logs) { add(numbers_.empty() ? 0 : numbers_.back() + 1, logs); }

  std::int64_t epochs() const { return static_cast<std::int64_t>(numbers_.size()); }
  // Returns the numbers of the added epochs, as in callbacks, log and TensorBoard: from 0 on. After resuming, they
  // include the epochs before.
  const std::vector<std::int64_t>& numbers() const { return numbers_; }
  std::vector<std::string> names() const;  // in the order of their first epochs
  // Returns the values in the order of numbers(). Throws InvalidArgument with the existing names if there is none of
  // that name.
  const std::vector<double>& values(const std::string& name) const;

  // Returns a table with one line per epoch.
  std::string text() const;
  // Returns a standalone SVG with one panel per name, in which "val_<name>" is the second curve. Values that are not
  // finite are gaps. Throws InvalidArgument before the first epoch.
  std::string svg() const;
  // Writes it to a file; throws FileError with path and reason. In a job, call it only on rank 0.
  void plot(const std::string& path) const;

 private:
  std::vector<std::int64_t> numbers_;
  std::vector<std::pair<std::string, std::vector<double>>> columns_;
};

}  // namespace lockstep::train
#pragma GCC visibility pop
