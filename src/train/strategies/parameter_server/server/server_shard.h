// A server's weights, in one piece of memory, and the optimizer that updates them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "src/train/strategies/parameter_server/optimizer_state.h"
#include "src/train/strategies/parameter_server/parameter_tasks.h"

namespace lockstep::train {

class ServerShard {
 public:
  // Takes the tensors of job.replica. Throws InvalidArgument for an optimizer with a LossScaler, and for one that is
  // not elementwise if a parameter is split.
  explicit ServerShard(ParameterServerJob& job);

  const Tensor& weights() const { return weights_; }
  std::int64_t floats() const { return weights_.count(); }
  optim::Optimizer& optimizer() const { return *optimizer_; }
  // A step by `gradients`, which are laid out as the weights are.
  void update(const Notice& notice, const Tensor& gradients) const;

  std::string state() const { return pack_state(*optimizer_, ranges_); }
  void set_state(const std::string& message) const { unpack_state(*optimizer_, ranges_, message); }

 private:
  struct Held {
    Tensor tensor;  // a window of weights_
    std::int64_t begin, flag;
  };

  Tensor weights_;
  std::vector<Held> held_;
  std::vector<StateRange> ranges_;
  std::unique_ptr<optim::Optimizer> optimizer_;
};

}  // namespace lockstep::train
