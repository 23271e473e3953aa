// Every optimizer in several settings, for the tests that hold for all of them. A new optimizer adds its cases in
// every_optimizer.cpp and nothing here.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/optim/optimizer.h"

namespace lockstep::optim {

// One weight with its state, in double.
struct Scalar {
  double w = 0, first = 0, second = 0, third = 0;
};

struct OptimizerCase {
  std::string name;  // "<optimizer>" or "<optimizer>_<setting>"
  std::string peer;  // the constructor's call in PyTorch or Keras: recorded_optimizers.py evaluates it
  std::function<std::unique_ptr<Optimizer>(std::vector<NamedTensor>, LossScaler*)> make;
  std::function<void(Scalar&, double grad, int step)> formula;  // of step 1, 2, ...; the peer's algorithm once more
  std::vector<std::string> states;                              // of parameter "w"
  std::array<double, 8> recorded;                               // weights after 100 steps, as the peer computed them
};

const std::vector<OptimizerCase>& optimizer_cases();

// The last case of each optimizer, which has all of its state.
std::vector<OptimizerCase> every_optimizer();

// Each makes an optimizer with an option that it must refuse.
const std::vector<std::function<void(std::vector<NamedTensor>)>>& refused_options();

std::vector<std::string> state_names(Optimizer& optimizer);
bool counts_steps(const OptimizerCase& each);

}  // namespace lockstep::optim
