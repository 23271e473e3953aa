#include "lockstep/optim/nadam.h"

#include <cmath>
#include <utility>

#include "src/optim/check_options.h"

namespace lockstep::optim {

Nadam::Nadam(std::vector<NamedTensor> parameters, const NadamOptions& options)
    : Optimizer(std::move(parameters), {.kind = "Nadam",
                                        .lr = options.lr,
                                        .weight_decay = options.weight_decay,
                                        .loss_scaler = options.loss_scaler,
                                        .states = {"exp_avg", "exp_avg_sq"},
                                        .counts_steps = true,
                                        .shares_updates = true}),
      options_(options) {
  require_share("Nadam", "beta1", options.beta1);
  require_share("Nadam", "beta2", options.beta2);
  require_not_negative("Nadam", "eps", options.eps);
  require_not_negative("Nadam", "momentum_decay", options.momentum_decay);
}

void Nadam::update(std::span<const UpdateTensor> tensors, const GroupStep& group, const KernelTable& kernels,
                   Stream& stream) {
  const double momentum_base = std::pow(0.96, options_.momentum_decay);
  kernels.nadam_step(
      tensors, {group, options_.beta1, options_.beta2, momentum_base, options_.eps, options_.decoupled_weight_decay},
      stream);
}

}  // namespace lockstep::optim
