#include "lockstep/optim/rmsprop.h"

#include <utility>

#include "src/optim/check_options.h"

namespace lockstep::optim {

static std::vector<const char*> rmsprop_states(const RMSpropOptions& options) {
  std::vector<const char*> names = {"square_avg"};
  if (options.momentum != 0) names.push_back("momentum_buffer");
  if (options.centered) names.push_back("grad_avg");
  return names;
}

RMSprop::RMSprop(std::vector<NamedTensor> parameters, const RMSpropOptions& options)
    : Optimizer(std::move(parameters), {.kind = "RMSprop",
                                        .lr = options.lr,
                                        .weight_decay = options.weight_decay,
                                        .loss_scaler = options.loss_scaler,
                                        .states = rmsprop_states(options),
                                        .shares_updates = true}),
      options_(options) {
  require_share("RMSprop", "alpha", options.alpha);
  require_not_negative("RMSprop", "eps", options.eps);
  require_not_negative("RMSprop", "momentum", options.momentum);
}

void RMSprop::update(std::span<const UpdateTensor> tensors, const GroupStep& group, const KernelTable& kernels,
                     Stream& stream) {
  kernels.rmsprop_step(tensors, {group, options_.alpha, options_.eps, options_.momentum, options_.centered}, stream);
}

}  // namespace lockstep::optim
