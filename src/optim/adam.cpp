#include "lockstep/optim/adam.h"

#include <utility>

#include "src/optim/check_options.h"

namespace lockstep::optim {

Adam::Adam(const char* kind, std::vector<NamedTensor> parameters, const AdamOptions& options, bool decoupled)
    : Optimizer(std::move(parameters), {.kind = kind,
                                        .lr = options.lr,
                                        .weight_decay = options.weight_decay,
                                        .loss_scaler = options.loss_scaler,
                                        .states = {"exp_avg", "exp_avg_sq"},
                                        .counts_steps = true,
                                        .shares_updates = true}),
      options_(options),
      decoupled_(decoupled) {
  require_share(kind, "beta1", options.beta1);
  require_share(kind, "beta2", options.beta2);
  require_not_negative(kind, "eps", options.eps);
}

Adam::Adam(std::vector<NamedTensor> parameters, const AdamOptions& options)
    : Adam("Adam", std::move(parameters), options, false) {}

AdamW::AdamW(std::vector<NamedTensor> parameters, const AdamWOptions& options)
    : Adam("AdamW", std::move(parameters),
           {.lr = options.lr,
            .beta1 = options.beta1,
            .beta2 = options.beta2,
            .eps = options.eps,
            .weight_decay = options.weight_decay,
            .loss_scaler = options.loss_scaler},
           true) {}

void Adam::update(std::span<const UpdateTensor> tensors, const GroupStep& group, const KernelTable& kernels,
                  Stream& stream) {
  kernels.adam_step(tensors, {group, options_.beta1, options_.beta2, options_.eps, decoupled_}, stream);
}

}  // namespace lockstep::optim
