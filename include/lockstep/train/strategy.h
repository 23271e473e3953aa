// Strategies: the ways to train one model on several devices, behind one interface, so that they can be compared.
//
//   auto strategy = train::make_strategy("mirrored", {.model = [] { return std::make_unique<Net>(); },
//                                                     .optimizer = [](auto parameters) { return
//                                                     std::make_unique<optim::SGD>(parameters,
//                                                     ...); }, .loss = nn::cross_entropy});
//   for (auto& [inputs, targets] : loader) strategy->step(inputs, targets);
//
// `ddp` is what Lockstep is for: a process for each device. The others are for users who come from programs that drive
// all their devices from one process, or keep the weights in processes of their own (train/parameter_server.h), and to
// see what each costs. docs/strategies.md compares them.
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
#include "lockstep/train/parameter_server.h"

#pragma GCC visibility push(default)
namespace lockstep {
class DistributedDataParallel;
}
namespace lockstep::train {

// What is trained. The functions are called on the thread that makes the strategy; `loss` on the threads that compute,
// several at once.
struct Training {
  std::function<std::unique_ptr<nn::Module>()> model;  // once for each replica; all start with the weights of the first
  std::function<std::unique_ptr<optim::Optimizer>(std::vector<NamedTensor> parameters)> optimizer;
  std::function<Tensor(const Tensor& outputs, const Tensor& targets)>
      loss;  // a scalar: the mean over the samples it is given
};

struct StrategyOptions {
  // Those that compute. Empty: the logical GPUs, or where there are none the logical CPUs; ddp takes the group's device
  // and no other, a worker of parameter_server the group's or the one that is given.
  std::vector<Device*> devices = {};
  Device* parameter_device = nullptr;  // of `towers`: where the variables are; null: the CPU
  // Of `ddp`, `zero`, `local_sgd` and `parameter_server`; null: the thread's default group. Of `model_parallel`: a rank
  // for each stage; null: this process has all stages.
  std::shared_ptr<ProcessGroup> group = nullptr;
  std::optional<DistributedDataParallelOptions> ddp = {};  // of `ddp`, `zero` and `local_sgd`: buckets, ...
  std::int64_t average_period = 0;  // of `local_sgd`: steps from one average of the weights to the next; 0: 4
  int micro_batches = 0;  // of `model_parallel`: equal parts of a batch, one behind the other; 0: as many as stages
  std::vector<int> stage_layers =
      {};  // of `model_parallel`: layers of each stage; empty: by the bytes of their parameters
  ParameterServerOptions parameter_server = {};  // of `parameter_server`
};

// Bytes that a device has sent to the others and received from them, inputs included, since the strategy was made.
struct DeviceTraffic {
  const Device* device = nullptr;
  std::uint64_t sent = 0, received = 0;
};

// Of stages that wait for each other.
struct PipelineBubble {
  int stages = 1, micro_batches = 1;
  double expected = 0;  // (stages - 1) / (micro_batches + stages - 1): the share of a step in which a stage waits
  std::vector<double> idle = {};  // the share of the last step in which each device of this process waited
};

struct NamedLoss {
  std::string name;
  float value = 0;
};

// Used from one thread. A step that throws leaves the replicas as they then are: the strategy is over.
class Strategy {
 public:
  virtual ~Strategy() = default;

  virtual const char* name() const = 0;
  // The devices of this process that compute.
  virtual const std::vector<Device*>& devices() const = 0;

  // Trains on the samples of this process: all of a step's samples where one process drives all devices, this rank's
  // part under ddp. Both tensors hold a sample a row, on the CPU or on the first device; for dropout the rows have the
  // calling thread's sample_numbers() (tensor/random.h), on whichever device they are computed. Blocks until the
  // weights are updated (a GPU: until that is queued). Returns the mean of the losses of this process's samples. Throws
  // InvalidArgument when the devices do not divide the samples, and what model, loss and optimizer throw, of several
  // devices that of the first.
  virtual float step(const Tensor& inputs, const Tensor& targets) = 0;

  // The model with the current weights, to be evaluated and saved between steps. Of local_sgd this rank's own, see
  // average_weights(). Of model_parallel with a group: collective; without one its layers lie on the devices of their
  // stages, and its forward() copies activations from one to the next. On a parameter server: InvalidArgument, worker 0
  // has it.
  virtual nn::Module& model() = 0;
  // Copies of the model with its current weights, model() first. Of `mirrored` one on each device, with equal bits
  // between two steps; of the others model() alone.
  virtual std::vector<nn::Module*> replicas() { return {&model()}; }
  // Whose state belongs to model(); change the rate by set_lr(). Of a parameter server: each server's own, of the
  // parameters that it holds; on a worker InvalidArgument.
  virtual optim::Optimizer& optimizer() = 0;
  virtual void set_lr(float lr) = 0;  // on all replicas
  // All that hold state of this process: of model_parallel one for each stage that trains something, and optimizer() is
  // the first.
  virtual std::vector<optim::Optimizer*> optimizers() { return {&optimizer()}; }
  // Of local_sgd, collective: averages the weights now, before an evaluation, a checkpoint, the end; the next average
  // comes .average_period steps later. A run that goes on and one that loads the checkpoint have equal bits where the
  // optimizer has no state and the model no buffers, of which a checkpoint has rank 0's, and each rank its own. Not in
  // join(): InvalidArgument. Of the others: does nothing.
  virtual void average_weights() {}
  // All replicas take over what model() and optimizer() hold, which the caller has changed: loaded, for instance. A
  // step does so by itself where it finds them changed. Under ddp it is for the caller to change them on all ranks
  // alike; a parameter server's worker 0 may change its model before its first step.
  virtual void update_replicas() {}

  // Of parameter_server: this process holds parameters. It calls serve() once, and no step(), which would throw
  // InvalidArgument, as would serve() elsewhere. Blocks until all workers have destroyed their strategies. Throws what
  // workers' loss or disagreement makes of it.
  virtual bool is_server() const { return false; }
  virtual void serve();
  // The ranks that compute: to divide samples among them, and to add up their metrics. ddp: its group;
  // parameter_server: a group of the workers, null on a server; null where one process drives all devices.
  virtual std::shared_ptr<ProcessGroup> workers() const { return nullptr; }
  virtual DistributedDataParallel* wrapper() { return nullptr; }  // of ddp, zero, local_sgd

  virtual std::vector<DeviceTraffic> traffic() const = 0;
  // Of the last step, by part of the model or batch: "tower_0/loss", ...; empty where the strategy has one loss.
  virtual std::vector<NamedLoss> losses() const { return {}; }
  virtual std::optional<PipelineBubble> bubble() const { return std::nullopt; }  // of model_parallel
};

// "ddp", "mirrored", ...: see strategies(). Throws InvalidArgument that lists them, for options that the strategy has
// no use for, and for a model that was not built in the scope (train/strategy_scope.h) in which this is called, or in
// none. In a scope: its strategy, no other name, and no options but its own. In a group of several ranks (the options',
// else the thread's default one) collective, whatever the strategy: what one rank alone asks for wrongly is thrown on
// all of them, and names that differ are a MismatchError. One of one process is refused there: a rank that makes it by
// itself gives a group of its own, .group = group->split(rank).
std::unique_ptr<Strategy> make_strategy(const std::string& name, Training training,
                                        const StrategyOptions& options = {});

struct StrategyKind {
  const char* name;
  const char* summary;  // a line, for --help
};
const std::vector<StrategyKind>& strategies();

}  // namespace lockstep::train
#pragma GCC visibility pop
