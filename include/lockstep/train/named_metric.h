// A metric of a Trainer, as listed in CompileOptions::metrics.
#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "lockstep/train/metrics.h"

#pragma GCC visibility push(default)
namespace lockstep::train {

// A metric (train/metrics.h) with a name. Training and validation each use a copy of it.
class NamedMetric {
 public:
  template <std::derived_from<Metric> M>
  requires requires(const M& metric) {
    { metric.value() } -> std::convertible_to<double>;
  }
  NamedMetric(std::string name, M metric)
      : name_(std::move(name)), make_([metric = std::move(metric)] {
          auto copy = std::make_shared<M>(metric);
          return Running{copy, [counted = copy.get()] { return counted->value(); }};
        }) {}

  struct Running {
    std::shared_ptr<Metric> metric;
    std::function<double()> value;
  };
  const std::string& name() const { return name_; }
  Running make() const { return make_(); }

 private:
  std::string name_;
  std::function<Running()> make_;
};

}  // namespace lockstep::train
#pragma GCC visibility pop
