// A simulated network that only takes time: an operation lasts alpha + bytes * beta, uses no CPU time, and moves no
// data.
//
// For tests and benchmarks of overlap. Every rank gets its own data as the result, as in a world of one. Operations are
// serialized like messages on one link: each starts when it has been issued and the previous one has ended.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "lockstep/comm/backend.h"

namespace lockstep {

struct DelayCost {
  std::chrono::nanoseconds alpha{20'000};  // fixed cost of an operation; LOCKSTEP_DELAY_ALPHA_US
  double gigabytes_per_second = 10;        // 1 / beta; LOCKSTEP_DELAY_GBPS
  std::chrono::nanoseconds of(std::size_t bytes) const;
};
DelayCost delay_cost_from_environment();

// One operation on the simulated network; the times are of steady_clock.
struct DelayEvent {
  OperationKind kind;
  std::int32_t purpose_index;
  std::size_t bytes;
  std::chrono::steady_clock::time_point issued, started, finished;
};

class DelayBackend : public Backend {
 public:
  explicit DelayBackend(const DelayCost& cost);
  ~DelayBackend() override;

  std::string_view name() const override { return "delay"; }
  std::string_view transport() const override { return "none"; }
  void run(const Operation& operation) override;
  Work start(const Operation& operation) override;
  Work start_chained(const Operation& operation, const Work& first) override;
  Buffer allocate(std::size_t bytes) override;
  void abort(const std::string& reason) override;
  void leave() noexcept override {}
  TransportCounters counters() const override { return {}; }

  // The operations since the last clear_events(), in order; `finished` may be in the future.
  std::vector<DelayEvent> events() const;
  void clear_events();

 private:
  class Wire;
  std::shared_ptr<Wire> wire_;
};

}  // namespace lockstep
