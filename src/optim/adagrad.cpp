#include "lockstep/optim/adagrad.h"

#include <utility>

#include "src/optim/check_options.h"

namespace lockstep::optim {

Adagrad::Adagrad(std::vector<NamedTensor> parameters, const AdagradOptions& options)
    : Optimizer(std::move(parameters), {.kind = "Adagrad",
                                        .lr = options.lr,
                                        .weight_decay = options.weight_decay,
                                        .loss_scaler = options.loss_scaler,
                                        .states = {"sum"},
                                        .counts_steps = true,
                                        .initial_state = options.initial_accumulator,
                                        .shares_updates = true}),
      options_(options) {
  require_not_negative("Adagrad", "lr_decay", options.lr_decay);
  require_not_negative("Adagrad", "initial_accumulator", options.initial_accumulator);
  require_not_negative("Adagrad", "eps", options.eps);
}

void Adagrad::update(std::span<const UpdateTensor> tensors, const GroupStep& group, const KernelTable& kernels,
                     Stream& stream) {
  kernels.adagrad_step(tensors, {group, options_.lr_decay, options_.eps}, stream);
}

}  // namespace lockstep::optim
