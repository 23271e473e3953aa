// Strategies: the ways to train one model on several devices, with one interface, so that they can be compared.
//
//   auto strategy = train::make_strategy(
//       "mirrored", {.model = [] { return std::make_unique<Net>(); },
//                    .optimizer = [](auto parameters) { return std::make_unique<optim::SGD>(parameters, ...); },
//                    .loss = nn::cross_entropy});  // or of the model, too: train/loss_function.h
//   for (auto& [inputs, targets] : loader) strategy->step(inputs, targets);
//
// Which loop is for whom:
//   your own loop over DistributedDataParallel   users who come from PyTorch, or whose step is not the usual one
//   Strategy::step()                             users who want to try one model on several devices in different ways
//   Trainer::fit()  (train/trainer.h)            users who come from Keras, or whose step is the usual one
//   train::train()  (train/train_loop.h)         programs that were written for Slim's model_deploy
// Take the first if in doubt: `ddp`, a process for each device, is what Lockstep is for. docs/strategies.md compares
// the strategies. Local SGD and ZeRO-1 are the strategies `local_sgd` and `zero`; a loop of your own takes the objects
// that they are made of, PeriodicModelAverager (ddp/model_averager.h) and ZeroRedundancyOptimizer (ddp/zero.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/core/logical_devices.h"
#include "lockstep/ddp/ddp_options.h"
#include "lockstep/nn/module.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/train/loss_function.h"
#include "lockstep/train/parameter_server.h"
#include "lockstep/train/strategies.h"
#include "lockstep/train/strategy_roles.h"

#pragma GCC visibility push(default)
namespace lockstep {
class DistributedDataParallel;
}
namespace lockstep::train {

// The model, its optimizer and its loss. The functions are called on the thread that makes the strategy, but `loss` is
// called on the threads that compute, several at once.
struct Training {
  std::function<std::unique_ptr<nn::Module>()> model;  // once for each replica; all start with the weights of the first
  std::function<std::unique_ptr<optim::Optimizer>(std::vector<NamedTensor> parameters)> optimizer;
  LossFunction loss;  // losses that modules add (nn/added_losses.h) come on top
};

struct StrategyOptions {
  // The devices that compute. Empty: the logical GPUs, or the logical CPUs if there are no GPUs. Strategies with ranks
  // take the group's device and no other; a worker of parameter_server takes the group's or those that are given.
  std::vector<Device*> devices = {};
  Device* parameter_device = nullptr;  // for `towers`: where the variables are; null: the CPU
  // For strategies with ranks; null: the thread's default group. For `model_parallel`: a rank for each stage; null:
  // this process has all stages.
  std::shared_ptr<ProcessGroup> group = nullptr;
  std::optional<DistributedDataParallelOptions> ddp = {};  // for `ddp`, `zero` and `local_sgd`: buckets, ...
  std::int64_t average_period = 0;  // for `local_sgd`: steps from one average of the weights to the next; 0: 4
  int micro_batches = 0;  // for `model_parallel`: equal parts of a batch, one after the other; 0: as many as stages
  // For `model_parallel`: layers of each stage; empty: divided by the bytes of their parameters.
  std::vector<int> stage_layers = {};
  ParameterServerOptions parameter_server = {};  // for `parameter_server`
};

// Bytes that a device has sent to the others and received from them, inputs included, since the strategy was made.
struct DeviceTraffic {
  const Device* device = nullptr;
  std::uint64_t sent = 0, received = 0;
};

// Use it from one thread. After a step that throws, the replicas are in an undefined state: make a new strategy.
class Strategy {
 public:
  virtual ~Strategy() = default;

  virtual const char* name() const = 0;
  // The devices of this process that compute.
  virtual const std::vector<Device*>& devices() const = 0;

  // Trains on the samples of this process: this rank's part if the strategy has ranks, otherwise all of a step's
  // samples. Both tensors hold a sample in each row, on the CPU or on the first device; for dropout the rows have the
  // calling thread's sample_numbers() (tensor/random.h), on whichever device they are computed. Blocks until the
  // weights are updated (a GPU: until that is queued). Returns the mean of the total losses of this process's samples.
  // Devices that do not divide the samples of a process take parts that differ by one sample, each weighted by its
  // number of samples, as tf.distribute does with the last batch; a device without samples takes part with gradients of
  // 0. Throws InvalidArgument for no samples, and what model, loss and optimizer throw (if several devices throw, the
  // error of the first); model_parallel also if its micro-batches do not divide the samples.
  virtual float step(const Tensor& inputs, const Tensor& targets) = 0;
  // The same for ranks whose numbers of samples differ in this step. The gradient of this rank's mean loss is
  // multiplied by `weight` before the average over the ranks. With (this rank's samples) x ranks / (all ranks' samples)
  // the result is the gradient of the mean over all samples; a rank without samples passes any sample, with weight 0.
  // All ranks make a step. Throws InvalidArgument for a weight that is negative or not finite, and for any but 1 if the
  // strategy has no ranks that average gradients.
  virtual float weighted_step(const Tensor& inputs, const Tensor& targets, float weight);

  // The model with the current weights, to be evaluated and saved between steps. local_sgd: this rank's own weights,
  // see WeightAverager. model_parallel with a group: collective; without a group the layers are on the devices of their
  // stages, and forward() copies activations from one to the next. A parameter server throws InvalidArgument: worker 0
  // has the model.
  virtual nn::Module& model() = 0;
  // Copies of the model with its current weights, model() first. mirrored: one on each device, with equal bits between
  // two steps; the others: model() alone.
  virtual std::vector<nn::Module*> replicas() { return {&model()}; }
  // The optimizer whose state belongs to model(); change the rate by set_lr(). Each parameter server has its own, for
  // the parameters that it holds; a worker's has a copy of their state, to be saved and loaded: the call fetches it
  // if a step has been made since the last call, and in an asynchronous job the weights of model() with it.
  virtual optim::Optimizer& optimizer() = 0;
  virtual void set_lr(float lr) = 0;               // on all replicas
  virtual float lr() { return optimizer().lr(); }  // a worker's asks ps:0 for this number alone
  // All optimizers with state in this process; optimizer() is the first. model_parallel: one for each stage that trains
  // something.
  virtual std::vector<optim::Optimizer*> optimizers() { return {&optimizer()}; }
  // Copies model() and optimizer(), which the caller has changed, for instance by loading them, to all replicas. A step
  // does so by itself if it finds them changed. With ranks the caller changes them on all ranks alike.
  // parameter_server: collective on the workers, not needed before the first step; all get worker 0's.
  virtual void update_replicas() {}

  // The ranks that compute: to divide samples among them, and to add up their metrics. parameter_server: a group of the
  // workers, null on a server; null if one process drives all devices.
  virtual std::shared_ptr<ProcessGroup> workers() const { return nullptr; }
  virtual DistributedDataParallel* wrapper() { return nullptr; }  // of ddp, zero and local_sgd
  // lockstep::should_stop() (comm/should_stop.h) for all ranks of the strategy. parameter_server: call it on the
  // workers; a signal to a server counts. With .staleness or .backup_workers each worker calls it, and gets an answer,
  // by itself.
  virtual bool should_stop();

  // The losses of the last step, on the samples of this process's first device: "loss", which Training::loss returned,
  // those that modules added, by name, and "total_loss", the sum. model_parallel: means over the micro-batches; a rank
  // has those of its stage, and only the last one has "loss". A parameter server has none. Empty before the first step.
  // Waits for the device.
  virtual std::vector<NamedLoss> step_losses() const = 0;

  virtual std::vector<DeviceTraffic> traffic() const = 0;

  // One of train/strategy_roles.h, which only some strategies have; null for the others.
  template <typename Role> Role* as() { return dynamic_cast<Role*>(this); }
};

// `name` is one of strategies(). Throws InvalidArgument for another name, for options that the strategy has no use for,
// and for a model that was built in another scope (train/strategy_scope.h) than that of this call. In a scope: makes
// its strategy, with the scope's options; another name, or other options, are refused. In a group of several ranks (the
// options', otherwise the thread's default group) this is collective, whatever the strategy: a mistake of one rank is
// thrown on all, and different names are a MismatchError. A strategy of one process is refused there: a rank that makes
// one by itself needs a separate group, .group = group->split(rank).
std::unique_ptr<Strategy> make_strategy(const std::string& name, Training training,
                                        const StrategyOptions& options = {});

}  // namespace lockstep::train
#pragma GCC visibility pop
