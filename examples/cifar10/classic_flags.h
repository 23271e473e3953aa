// The command line of cifar10 --recipe classic. Two common flags have other names: `batch` is --batch-size, per device,
// and `steps` is --max-steps.
#pragma once

#include <string>

#include "examples/lib/training.h"

struct ClassicFlags : lockstep::examples::TrainingFlags {
  std::string train_dir = "cifar10_train", strategy = "ddp";
  std::int64_t num_gpus = 0;  // 0: all
  std::int64_t summary_every = 100, save_every = 1000, keep = 5;
  std::int64_t input_threads = 4;  // the tutorial has 16
  bool generated = false, overwrite = false, resume = false, log_device_placement = false;
};

// As lockstep::examples::read_flags().
bool read_classic_flags(int argc, char** argv, ClassicFlags& flags);
