// The model of training_rank, also for tests that load its checkpoints.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/nn/layers.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/train/checkpoint.h"

namespace lockstep::testing {

struct TrainingNet : nn::Sequential {
  static constexpr std::int64_t kInputs = 16, kClasses = 4;
  explicit TrainingNet(std::int64_t width = 32) {
    append_named<nn::Linear>("hidden", kInputs, width, nn::LinearLayerOptions{.activation = Activation::kReLU});
    append_named<nn::Linear>("out", width, kClasses);
  }
};

// Returns the step of the folder's checkpoint, with every checksum verified; nullopt: there is none. Throws FileError
// if it is damaged.
inline std::optional<std::int64_t> load_training(const std::string& folder) {
  TrainingNet net;
  optim::SGD sgd(net.named_parameters(), {.lr = 0.1F, .momentum = 0.9F});
  const auto state = train::load_checkpoint(folder, {.model = net, .optimizer = sgd});
  return state ? std::optional(state->step) : std::nullopt;
}

}  // namespace lockstep::testing
