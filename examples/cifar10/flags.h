// The command line of cifar10.
#pragma once

#include <string>

#include "examples/lib/training.h"

struct Flags : lockstep::examples::TrainingFlags {
  std::string recipe, checkpoint, resume_from;
  std::int64_t save_every = 0;
  bool augment = true, generated = false, resume = false, auto_resume = false, summary = false;
};

// As lockstep::examples::read_flags().
bool read_cifar10_flags(int argc, char** argv, Flags& flags);
