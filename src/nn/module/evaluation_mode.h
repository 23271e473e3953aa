#pragma once

#include <utility>
#include <vector>

#include "lockstep/nn/module.h"

namespace lockstep::nn {

// Puts a module in eval mode; the destructor restores the mode of each module in it.
class EvaluationMode {
 public:
  explicit EvaluationMode(Module& module) {
    collect(module);
    module.eval();
  }
  ~EvaluationMode() {
    for (const auto& [module, was_training] : modes_)
      module->train(was_training);  // parents first, because train() also sets the children
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  void collect(Module& module) {
    modes_.emplace_back(&module, module.is_training());
    for (const auto& [name, child] : module.children()) collect(*child);
  }

  std::vector<std::pair<Module*, bool>> modes_;
};

}  // namespace lockstep::nn
