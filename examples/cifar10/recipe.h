// A recipe: a network with its images, optimizer and learning rates. Each recipe is a file of this folder. The recipe
// `classic` is a separate training (classic.h) with its own flags.
#pragma once

#include <lockstep/lockstep.h>

#include <memory>
#include <string>

struct Recipe {
  const char* name;
  const char* purpose;  // for --help
  std::unique_ptr<lockstep::nn::Module> (*make_net)();
  lockstep::data::ImageAugmentation augmentation;
  float peak_rate, generated_rate;  // generated_rate: for the generated set, on which larger rates diverge
  float momentum;
  lockstep::optim::Schedule (*make_rate)(float peak, std::int64_t total_steps);
  float weight_decay = 0;  // of all parameters
  float label_smoothing = 0;
};

extern const Recipe kQuick, kModern;

// Throws InvalidArgument, which lists the recipes, for an unknown name.
const Recipe& recipe_named(const std::string& name);
std::string recipe_list();  // "'quick' (one-cycle rate, momentum 0.9), ..."
