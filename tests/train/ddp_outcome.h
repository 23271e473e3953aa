// The weights and losses of a training by ddp: what other strategies are held to.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/ddp/ranks.h"
#include "tests/train/strategy_training.h"

namespace lockstep::train {

struct Outcome {
  std::vector<float> weights;
  float first_loss = 0, last_loss = 0;
};

// Trains this rank's share of the samples of step `step`, with random numbers of that step.
inline float step_on_own_samples(Strategy& strategy, const ProcessGroup& group, int step) {
  const auto batch = batch_of(step);
  const std::int64_t each = kBatch / group.world_size(), begin = group.rank() * each;
  manual_seed(static_cast<std::uint64_t>(step));  // dropout's draws
  return strategy.step(slice(batch.first, 0, {.start = begin, .stop = begin + each}),
                       slice(batch.second, 0, {.start = begin, .stop = begin + each}));
}

inline Outcome train_by_ddp(int ranks, const std::string& name = "ddp") {
  std::vector<Outcome> outcomes(static_cast<std::size_t>(ranks));
  testing::expect_all_well(testing::run_ranks(ranks, "threads", [&](std::shared_ptr<ProcessGroup> group) {
    const auto strategy = make_strategy(name, training_of_net(), {.group = group});
    manual_seed(11);
    const std::int64_t each = kBatch / ranks, rank = group->rank();
    set_first_sample(rank * each);
    Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
    for (int step = 0; step < kSteps; ++step) {
      const auto batch = batch_of(step);
      const Tensor &inputs = batch.first, &targets = batch.second;
      const float loss = strategy->step(slice(inputs, 0, {.start = rank * each, .stop = (rank + 1) * each}),
                                        slice(targets, 0, {.start = rank * each, .stop = (rank + 1) * each}));
      outcome.last_loss += loss;
      if (step == 0) outcome.first_loss = loss;
      if (step + 1 < kSteps) outcome.last_loss = 0;
    }
    outcome.weights = weights_of(strategy->model());
  }));
  float first = 0, last = 0;
  for (const Outcome& outcome : outcomes)
    first += outcome.first_loss / static_cast<float>(ranks), last += outcome.last_loss / static_cast<float>(ranks);
  return {outcomes[0].weights, first, last};
}

}  // namespace lockstep::train
