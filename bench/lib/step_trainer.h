// One replica of a model of train_step_models.h with its data, its optimizer and its clocks, for the programs that time
// steps.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bench/lib/train_step_models.h"
#include "lockstep/lockstep.h"

namespace lockstep::bench {

struct StepTrainerOptions {
  CommHook hook = {};
  Device* device = nullptr;    // null: the CPU
  std::string optimizer = {};  // see make_optimizer()
  bool zero = false;           // use a ZeroRedundancyOptimizer
  int average_period = 0;      // above 0: weights are averaged after this many steps (local SGD)
};

// Layers compute in the type of the active AutoCast.
class StepTrainer {
 public:
  struct Step {
    double forward, backward, update, total;  // ms; backward without the time that finish() waited
    double bound;                             // forward + max(backward, minimum time of the wire) + update
  };

  StepTrainer(const std::string& model, std::shared_ptr<ProcessGroup> group, const StepTrainerOptions& options = {});

  Step step();
  // The same without clocks; after use_graph() it replays the graph.
  void run_step();
  void use_graph();

  // The state of the present weights, which shows what was computed, and in which type.
  struct Outcome {
    float loss;
    DType logits;
  };
  Outcome outcome();

  std::span<const BucketTimes> times() const { return ddp_->reducer().last_pass(); }
  const std::vector<double>& cost_ms() const { return cost_ms_; }          // of the backend `delay`, by bucket
  double ready_ms(std::size_t bucket) const { return ready_ms_[bucket]; }  // since backward began
  int batch() const { return static_cast<int>(model_.batch); }
  std::int64_t parameters() const;  // their elements
  ProcessGroup& group() const { return ddp_->group(); }
  const Reducer& reducer() const { return ddp_->reducer(); }

 private:
  using Clock = std::chrono::steady_clock;
  Tensor bare_step();
  void update();
  Tensor scaled(const Tensor& loss) { return scaler_ ? scaler_->scale(loss) : loss; }
  void note_costs();
  double wire_ms(double first_ready_ms);

  TrainStepModel model_;
  Tensor x_, labels_;
  std::vector<HookHandle> hooks_;
  std::unique_ptr<DistributedDataParallel> ddp_;
  std::optional<optim::LossScaler> scaler_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::optional<ZeroRedundancyOptimizer> zero_;
  std::optional<PeriodicModelAverager> averager_;
  std::optional<CapturedStep> graph_;
  Clock::time_point first_ready_;
  std::vector<double> cost_ms_, ready_ms_;
};

}  // namespace lockstep::bench
