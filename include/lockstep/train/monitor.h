// Tracks one value of the logs for callbacks and decides whether an epoch is the best so far.
#pragma once

#include <optional>
#include <string>

#include "lockstep/train/history.h"
#include "lockstep/train/metrics.h"

#pragma GCC visibility push(default)
namespace lockstep::train {

class Trainer;

class Monitor {
 public:
  // Mode::kAuto is resolved by follow() or by the first improves(). Less is better for loss, error, error_rate, mse,
  // mae, rmse, mean_squared_error, mean_absolute_error, root_mean_squared_error, cross_entropy, nll and perplexity;
  // more for accuracy, acc, auc, precision, recall, f1 and f1_score; the same with the prefix "val_".
  Monitor(std::string name, Mode mode, double min_delta = 0);
  // Resolves Mode::kAuto by the trainer's metric of that name, or else by the name. Throws InvalidArgument, beginning
  // with `asks` and requesting .mode, if neither decides it.
  void follow(const Trainer& trainer, const char* asks);
  // Returns whether this epoch is the best so far by more than min_delta; NaN never is. Throws InvalidArgument, with
  // the existing names, if there is none of that name, and where follow() does.
  bool improves(const Logs& logs, const char* asks);
  void restart() { best_.reset(); }  // forgets the best value
  void resume(double best) { best_ = best; }

  const std::string& name() const { return name_; }
  std::optional<double> best() const { return best_; }  // nullopt: none yet
  std::string text() const;                             // "val_loss, less"

 private:
  void settle(Mode of_metric, const char* asks);

  std::string name_;
  Mode asked_, mode_;
  double min_delta_;
  std::optional<double> best_;
};

}  // namespace lockstep::train
#pragma GCC visibility pop
