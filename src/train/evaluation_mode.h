#pragma once

#include "lockstep/nn/module.h"

namespace lockstep {

// A module evaluates while one lives.
class EvaluationMode {
 public:
  explicit EvaluationMode(nn::Module& model) : model_(model), before_(model.is_training()) { model_.train(false); }
  ~EvaluationMode() { model_.train(before_); }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  nn::Module& model_;
  bool before_;
};

}  // namespace lockstep
