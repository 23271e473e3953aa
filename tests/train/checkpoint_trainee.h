// A small model with all parts of a checkpoint: an optimizer whose momenta are not zero, a sampler in the middle of an
// epoch.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/nn/layers.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/tensor/random.h"
#include "lockstep/train/checkpoint.h"

namespace lockstep::train {

struct CheckpointNet : nn::Sequential {
  explicit CheckpointNet(std::int64_t width = 3) {
    append_named<nn::Linear>("a", 2, width);
    append_named<nn::Linear>("b", width, 1);
  }
};

struct CheckpointTrainee {
  explicit CheckpointTrainee(std::uint64_t seed, std::int64_t width = 3) : net((manual_seed(seed), width)) {
    for (const NamedTensor& momentum : sgd.state()) fill_uniform(momentum.tensor, -1, 1);
    sampler.set_epoch(static_cast<std::int64_t>(seed));
    sampler.advance(4);
  }
  CheckpointParts parts(std::int64_t step = 7) {
    return {.model = net, .optimizer = sgd, .sampler = sampler, .step = step, .epoch = 2};
  }
  std::string hash() {
    return hash_of(net.named_parameters()) + hash_of(sgd.state()) + std::to_string(sampler.epoch()) +
           std::to_string(random_state().seed);
  }

  CheckpointNet net;
  optim::SGD sgd{net.named_parameters(), {.lr = 0.1f, .momentum = 0.9f}};
  data::DistributedSampler sampler{20, {}, {.seed = 5}};
};

}  // namespace lockstep::train
