// One training of cifar10: what its steps read and change, and its epochs.
#pragma once

#include <nlohmann/json.hpp>

#include "examples/cifar10/data.h"
#include "examples/cifar10/flags.h"
#include "examples/cifar10/recipe.h"

// A training run: all that a step reads and changes.
struct Run {
  const Flags& flags;
  const Recipe& recipe;
  lockstep::ProcessGroup& group;
  const Data& data;
  lockstep::nn::Module& net;
  lockstep::DistributedDataParallel& ddp;
  lockstep::optim::SGD& sgd;
  lockstep::optim::LossScaler* scaler;  // null: none
  lockstep::data::DistributedSampler& sampler;
  lockstep::Progress& progress;
  lockstep::examples::Steps steps;
  lockstep::optim::Schedule rate;
  std::int64_t step = 0, epoch = 0;
  std::string saved_in = {};
  nlohmann::json figures = {};

  void introduce();     // says what is to be trained, and on what
  void resume();        // from a checkpoint, when the flags ask for one
  void train_epoch();   // or what is left of it
  void finish_epoch();  // evaluation, checkpoint
  void save();
};

// Says what came of it, and writes --json-file.
void report(Run& run, double seconds);
