#include "lockstep/optim/sgd.h"

#include <utility>

#include "src/optim/check_options.h"

namespace lockstep::optim {

SGD::SGD(std::vector<NamedTensor> parameters, const SGDOptions& options)
    : Optimizer(std::move(parameters),
                {.kind = "SGD",
                 .lr = options.lr,
                 .weight_decay = options.weight_decay,
                 .loss_scaler = options.loss_scaler,
                 .states = options.momentum != 0 ? std::vector{"momentum"} : std::vector<const char*>{},
                 .shares_updates = true}),
      options_(options) {
  require_not_negative("SGD", "momentum", options.momentum);
  if (options.nesterov && options.momentum == 0) throw InvalidArgument("SGD: nesterov needs a momentum above 0");
}

void SGD::update(std::span<const UpdateTensor> tensors, const GroupStep& group, const KernelTable& kernels,
                 Stream& stream) {
  kernels.sgd_step(tensors, {group, options_.momentum, options_.nesterov}, stream);
}

}  // namespace lockstep::optim
