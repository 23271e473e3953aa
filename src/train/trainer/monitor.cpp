#include "lockstep/train/monitor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/train/trainer.h"
#include "src/train/files/bare_name.h"

namespace lockstep::train {

namespace {

// Only entire names are compared, because parts of names mislead ("f1_loss", "inaccuracy", "topology_loss").
Mode mode_of_name(const std::string& name) {
  static constexpr const char* kLess[] = {"loss",
                                          "error",
                                          "error_rate",
                                          "mse",
                                          "mae",
                                          "rmse",
                                          "mean_squared_error",
                                          "mean_absolute_error",
                                          "root_mean_squared_error",
                                          "cross_entropy",
                                          "nll",
                                          "perplexity"};
  static constexpr const char* kMore[] = {"accuracy", "acc", "auc", "precision", "recall", "f1", "f1_score"};
  const auto is_among = [bare = bare_name(name)](const auto& names) {
    return std::any_of(std::begin(names), std::end(names), [&](const char* known) { return bare == known; });
  };
  return is_among(kLess) ? Mode::kLess : is_among(kMore) ? Mode::kMore : Mode::kAuto;
}

}  // namespace

Monitor::Monitor(std::string name, Mode mode, double min_delta)
    : name_(std::move(name)), asked_(mode), mode_(mode), min_delta_(std::fabs(min_delta)) {}

void Monitor::settle(Mode of_metric, const char* asks) {
  mode_ = asked_ != Mode::kAuto ? asked_ : of_metric != Mode::kAuto ? of_metric : mode_of_name(name_);
  if (mode_ == Mode::kAuto)
    throw InvalidArgument(
        "{}: neither the name '{}' nor a metric says whether more or less is better: set .mode = Mode::kMore or "
        "Mode::kLess, or override the metric's better()",
        asks, name_);
}

void Monitor::follow(const Trainer& trainer, const char* asks) { settle(trainer.mode_of(name_), asks); }

bool Monitor::improves(const Logs& logs, const char* asks) {
  if (mode_ == Mode::kAuto) settle(Mode::kAuto, asks);
  const double value = value_of(logs, name_, asks), infinity = std::numeric_limits<double>::infinity();
  const bool more = mode_ == Mode::kMore;
  const double best = best_.value_or(more ? -infinity : infinity);
  const bool better = more ? value > best + min_delta_ : value < best - min_delta_;  // false for NaN
  if (better) best_ = value;
  return better;
}

std::string Monitor::text() const {
  return fmt::format("{}, {}", name_, mode_ == Mode::kMore ? "more" : mode_ == Mode::kLess ? "less" : "auto");
}

}  // namespace lockstep::train
