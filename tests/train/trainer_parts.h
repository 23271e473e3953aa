// A small problem for the Trainer tests: points and their quadrants.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/lockstep.h"

namespace lockstep::train {

class Quadrants : public data::Dataset {
 public:
  explicit Quadrants(std::int64_t size, std::uint64_t seed = 1) : size_(size), seed_(seed) {}
  std::int64_t size() const override { return size_; }
  data::Sample get(std::int64_t index, std::int64_t) const override {
    Philox random(seed_, random_stream(RandomUse::kProgram, static_cast<std::uint64_t>(index)));
    const float x = random.uniform(-1, 1), y = random.uniform(-1, 1);
    const std::vector<float> point = {x + (x < 0 ? -0.3F : 0.3F), y + (y < 0 ? -0.3F : 0.3F)};
    return {Tensor::from<float>(point, {2}), data::scalar<std::int64_t>((x < 0 ? 1 : 0) + (y < 0 ? 2 : 0))};
  }

 private:
  std::int64_t size_;
  std::uint64_t seed_;
};

inline std::unique_ptr<nn::Module> make_dense() {
  manual_seed(5);
  auto net = std::make_unique<nn::Sequential>();
  net->append_named<nn::Linear>("hidden", 2, 16, nn::LinearLayerOptions{.activation = Activation::kReLU});
  net->append_named<nn::Linear>("out", 16, 4);
  return net;
}

inline CompileOptions classifying(const std::string& strategy) {
  return {.optimizer = [](std::vector<NamedTensor> parameters) -> std::unique_ptr<optim::Optimizer> {
            return std::make_unique<optim::Adam>(std::move(parameters), optim::AdamOptions{.lr = 0.05F});
          },
          .loss = [](const Tensor& outputs, const Tensor& targets) { return nn::cross_entropy(outputs, targets); },
          .metrics = {{"accuracy", Accuracy()}, {"top2", TopK(2)}},
          .strategy = strategy};
}

inline std::vector<float> values_of(nn::Module& model) {
  std::vector<float> all;
  for (const NamedTensor& entry : model.state_dict()) {
    const Tensor host = entry.tensor.to(cpu_device());
    all.insert(all.end(), host.span<float>().begin(), host.span<float>().end());
  }
  return all;
}

class CountSteps : public Callback {
 public:
  explicit CountSteps(std::int64_t& steps) : steps_(steps) {}
  void on_step_end(Trainer&, std::int64_t, const Logs&) override { ++steps_; }

 private:
  std::int64_t& steps_;
};

}  // namespace lockstep::train
