// One training run of cifar10: the state that its steps read and change, and its epochs.
#pragma once

#include <nlohmann/json.hpp>

#include "examples/cifar10/data.h"
#include "examples/cifar10/flags.h"
#include "examples/cifar10/recipe.h"

// All that a step reads and changes.
struct Run {
  const Flags& flags;
  const Recipe& recipe;
  lockstep::ProcessGroup& group;
  const Data& data;
  lockstep::nn::Module& net;
  lockstep::DistributedDataParallel& ddp;
  lockstep::optim::SGD& sgd;
  lockstep::optim::LossScaler* scaler;  // may be null
  lockstep::data::DistributedSampler& sampler;
  lockstep::train::Progress& progress;
  lockstep::examples::Steps steps;
  lockstep::optim::Schedule rate;
  std::int64_t step = 0, epoch = 0;
  std::string saved_in = {};
  nlohmann::json figures = {};
  std::vector<lockstep::Tensor> unread = {};  // losses of the last steps, on the device

  void introduce();     // logs the model, the data and the ranks
  void resume();        // from a checkpoint, when the flags request it
  void train_epoch();   // or the rest of it after a resume
  void finish_epoch();  // evaluation, checkpoint
  void read_losses();   // into the figures; throws for one that is not finite
  void save();
};

// Logs the result, and writes --json-file.
void report(Run& run, double seconds);
