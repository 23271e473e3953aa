// A recipe: a network with the images, the optimizer and the learning rates that go with it. One a file of this folder. The recipe
// `classic` is a training of its own (classic.h), with flags of its own.
#pragma once

#include <lockstep/lockstep.h>

#include <memory>
#include <string>

struct Recipe {
  const char* name;
  const char* purpose;  // for --help
  std::unique_ptr<lockstep::nn::Module> (*make_net)();
  lockstep::data::ImageAugmentation augmentation;
  float peak_rate, generated_rate;  // the second one: on the generated set, which larger rates would not learn
  float momentum;
  lockstep::optim::Schedule (*make_rate)(float peak, std::int64_t total_steps);
  float weight_decay = 0;  // of all parameters
  float label_smoothing = 0;
};

extern const Recipe kQuick, kModern;

// InvalidArgument that lists the recipes, for a name that is none.
const Recipe& recipe_named(const std::string& name);
std::string recipe_list();  // "'quick' (one-cycle rate, momentum 0.9), ..."
