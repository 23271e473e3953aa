// A parameter server's job with ranks that are threads, for tests.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/ddp/ranks.h"
#include "tests/train/strategy_training.h"

namespace lockstep::train {

using Group = std::shared_ptr<ProcessGroup>;

inline StrategyOptions options_of(const Group& group, const ParameterServerOptions& options) {
  return {.group = group, .parameter_server = options};
}

// Servers serve; `work` is called on the workers. Returns what each rank threw; workers come first.
inline std::vector<std::string> run_job(
    int workers, const ParameterServerOptions& options, const std::function<void(Strategy&, int worker)>& work,
    const std::function<Training(int rank)>& training = [](int) { return training_of_net(); }) {
  return testing::run_ranks(workers + options.servers, "shm", [&](const Group& group) {
    const auto strategy = make_strategy("parameter_server", training(group->rank()), options_of(group, options));
    auto* const server = strategy->as<ParameterHolder>();
    EXPECT_EQ(server != nullptr, group->rank() >= workers);
    if (server != nullptr)
      server->serve();
    else
      work(*strategy, group->rank());
  });
}

// y = 3 x - 1, a mean of squares of which each worker has other samples.
inline Training training_of_line(const std::function<void()>& on_loss = [] {}) {
  return {.model =
              [] {
                manual_seed(5);
                return std::make_unique<nn::Linear>(1, 1);
              },
          .optimizer = [](std::vector<NamedTensor> parameters) -> std::unique_ptr<optim::Optimizer> {
            return std::make_unique<optim::SGD>(std::move(parameters), optim::SGDOptions{.lr = 0.1F});
          },
          .loss =
              [on_loss](const Tensor& outputs, const Tensor& targets) {
                on_loss();
                return mse_loss(outputs, targets);
              }};
}

inline float line_step(Strategy& strategy, int step, int worker) {
  std::vector<float> xs, ys;
  for (int i = 0; i < 4; ++i)
    xs.push_back(static_cast<float>((7 * step + 3 * worker + 5 * i) % 17) / 8 - 1), ys.push_back(3 * xs.back() - 1);
  return strategy.step(Tensor::from<float>(xs, {4, 1}), Tensor::from<float>(ys, {4, 1}));
}

}  // namespace lockstep::train
