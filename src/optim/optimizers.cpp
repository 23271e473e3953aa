// The optimizers: their options, the names of their state, and the kernel that computes their formula.
#include <cmath>
#include <utility>

#include "lockstep/optim/adagrad.h"
#include "lockstep/optim/adam.h"
#include "lockstep/optim/nadam.h"
#include "lockstep/optim/rmsprop.h"
#include "lockstep/optim/sgd.h"
#include "src/optim/check_options.h"

namespace lockstep::optim {

// -- SGD

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
  if (options.nesterov && options.momentum == 0) throw InvalidArgument("SGD: nesterov requires a momentum above 0");
}

void SGD::update(std::span<const UpdateTensor> tensors, const GroupStep& group, const KernelTable& kernels,
                 Stream& stream) {
  kernels.sgd_step(tensors, {group, options_.momentum, options_.nesterov}, stream);
}

// -- Adam, AdamW

static std::vector<const char*> adam_states(bool amsgrad) {
  return amsgrad ? std::vector{"exp_avg", "exp_avg_sq", "max_exp_avg_sq"} : std::vector{"exp_avg", "exp_avg_sq"};
}

Adam::Adam(const char* kind, std::vector<NamedTensor> parameters, const AdamOptions& options, bool decoupled)
    : Optimizer(std::move(parameters), {.kind = kind,
                                        .lr = options.lr,
                                        .weight_decay = options.weight_decay,
                                        .loss_scaler = options.loss_scaler,
                                        .states = adam_states(options.amsgrad),
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
            .amsgrad = options.amsgrad,
            .loss_scaler = options.loss_scaler},
           true) {}

void Adam::update(std::span<const UpdateTensor> tensors, const GroupStep& group, const KernelTable& kernels,
                  Stream& stream) {
  kernels.adam_step(tensors, {group, options_.beta1, options_.beta2, options_.eps, decoupled_, options_.amsgrad},
                    stream);
}

// -- Nadam

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

// -- RMSprop

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

// -- Adagrad

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
