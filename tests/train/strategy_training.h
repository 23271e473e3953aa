// The training of the strategies' tests: a net, its samples, and the comparison of weights.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/lockstep.h"

namespace lockstep::train {

inline constexpr int kSteps = 20;
inline constexpr std::int64_t kBatch = 12;

// Convolution, batch normalisation, dropout.
struct Net : nn::Module {
  nn::Conv2d conv{2, 4, {3, 3}, {.activation = Activation::kReLU}};
  nn::BatchNorm norm{4};
  nn::Linear hidden{4 * 4 * 4, 8}, out{8, 3};
  Net() {
    add("conv", conv);
    add("norm", norm);
    add("hidden", hidden);
    add("out", out);
  }
  Tensor forward(const Tensor& x) override {
    return out(dropout(tanh(hidden(flatten(norm(conv(x))))), 0.25F, is_training()));
  }
};

inline Training training_of_net() {
  return {.model =
              [] {
                manual_seed(7);
                return std::make_unique<Net>();
              },
          .optimizer = [](std::vector<NamedTensor> parameters) -> std::unique_ptr<optim::Optimizer> {
            return std::make_unique<optim::SGD>(
                std::move(parameters), optim::SGDOptions{.lr = 0.05F, .momentum = 0.9F, .weight_decay = 1e-3F});
          },
          .loss = [](const Tensor& outputs, const Tensor& targets) { return nn::cross_entropy(outputs, targets); }};
}

// Step `step`'s samples: the same for all strategies.
inline std::pair<Tensor, Tensor> batch_of(int step) {
  Philox random(3, random_stream(RandomUse::kProgram, static_cast<std::uint64_t>(step)));
  std::vector<float> values(kBatch * 6 * 6 * 2);
  for (float& value : values) value = random.normal();
  std::vector<std::int64_t> labels(kBatch);
  for (std::int64_t& label : labels) label = random.below(3);
  return {Tensor::from<float>(values, {kBatch, 6, 6, 2}), Tensor::from<std::int64_t>(labels, {kBatch})};
}

inline std::vector<float> weights_of(nn::Module& model) {
  std::vector<float> all;
  for (const NamedTensor& parameter : model.named_parameters()) {
    const Tensor host = parameter.tensor.to(cpu_device());
    all.insert(all.end(), host.span<float>().begin(), host.span<float>().end());
  }
  return all;
}

inline float largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  float largest = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

inline StrategyOptions on_cpus(int first, int count) {
  StrategyOptions options;
  const auto cpus = logical_devices(DeviceKind::kCpu);
  for (int i = first; i < first + count; ++i) options.devices.push_back(cpus[static_cast<std::size_t>(i)]);
  return options;
}

}  // namespace lockstep::train
