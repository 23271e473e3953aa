// A wire that takes its time and nothing else: an operation lasts alpha + bytes * beta, uses no processor, moves no
// data.
//
// For tests and benchmarks of overlap. Every rank sees its own data as the result, as in a world of one. Operations
// take turns like messages on one wire: each starts when it is issued and the one before has ended.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "lockstep/comm/backend.h"

namespace lockstep {

struct DelayCost {
  std::chrono::nanoseconds alpha{20'000};  // an operation's fixed cost; LOCKSTEP_DELAY_ALPHA_US
  double gigabytes_per_second = 10;        // 1 / beta; LOCKSTEP_DELAY_GBPS
  std::chrono::nanoseconds of(std::size_t bytes) const;
};
DelayCost delay_cost_from_environment();

// One operation on the wire; times are of steady_clock.
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

  // The operations on the wire since the last clear_events(), in order; finished may lie in the future.
  std::vector<DelayEvent> events() const;
  void clear_events();

 private:
  class Wire;
  std::shared_ptr<Wire> wire_;
};

}  // namespace lockstep
