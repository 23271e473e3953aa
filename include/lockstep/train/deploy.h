// Clones of a model on the devices of one process, step by step as in Slim's model_deploy and learning.train: for
// programs that were written for these. make_strategy("towers") does the same in one piece.
//
//   train::DeployedModel deployed = train::deploy({.num_clones = 2}, {.model = ..., .optimizer = ..., .loss = ...},
//                                                 {.next_batch = [&] { return reader.next(); }, .summarize_gradients =
//                                                 true});
//   train::train(deployed.train_op, "runs/first", deployed.summary_op, {.number_of_steps = 1000});
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/train/strategy.h"
#include "lockstep/train/summary_writer.h"

#pragma GCC visibility push(default)
namespace lockstep::train {

// A device, and the job and task of the process that it belongs to: "/job:ps/task:1/device:cpu:0", "/device:cuda:0" in
// this process.
struct DeploymentDevice {
  std::string job = {};          // empty: this process
  std::optional<int> task = {};  // absent: any, or the only one
  Device* device = nullptr;
  std::string name() const;
};

// Where the parts of a training are. Slim's names and rules; each function throws InvalidArgument for a configuration
// that makes no sense.
struct DeploymentConfig {
  int num_clones = 1;
  bool clone_on_cpu = false;  // all clones on the first CPU device
  int replica_id = 0;         // of this worker process, and how many there are
  int num_replicas = 1;
  int num_ps_tasks = 0;  // parameter servers; 0: the variables are this process's
  std::string worker_job_name = "worker", ps_job_name = "ps";
  std::vector<Device*> devices =
      {};  // of the clones, in order, each once; empty: the logical GPUs, or if there are none the logical CPUs

  DeploymentDevice variables_device(
      int variable = 0) const;             // the CPU; of parameter servers variable v is on task v modulo their number
  DeploymentDevice inputs_device() const;  // the CPU of the worker
  DeploymentDevice optimizer_device() const;  // the CPU of the worker
  DeploymentDevice clone_device(int clone) const;
  std::string clone_scope(int clone) const;  // "clone_1"; "" where there is one clone
};

struct Clone {
  std::string scope;
  Device* device = nullptr;
  nn::Module* model = nullptr;  // its values are the variables' of the last step
  Tensor outputs;               // of the last step, on `device`; undefined before it
};

// The variables and the clones that compute with copies of them. Used from one thread.
class Clones {
 public:
  ~Clones();
  Clones(Clones&&) noexcept;
  Clones& operator=(Clones&&) noexcept;
  nn::Module& variables()
      const;  // on variables_device(): what an optimizer updates and what is saved; it does not compute
  const std::vector<NamedTensor>& parameters() const;  // those of variables() that are trained
  const std::vector<Clone>& all() const;

  struct Impl;
  explicit Clones(std::unique_ptr<Impl> impl);
  Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

// Calls `model` once for the variables and once for each clone; all have the values of the first. Throws
// InvalidArgument for more clones than devices, and for parameter servers, which keep variables out of this process.
Clones create_clones(const DeploymentConfig& config, const std::function<std::unique_ptr<nn::Module>()>& model);

// A clone's share of the total loss, loss / num_clones, as "clone_1/scaled_clone_loss"; of a single clone the loss
// itself, as "clone_loss".
NamedTensor gather_clone_loss(const Clone& clone, const Tensor& loss, int num_clones);

struct CloneLosses {
  float total = 0;                // the sum of the clones' shares, regularization added
  std::vector<NamedLoss> clones;  // "clone_0/clone_loss": the mean over the clone's samples, not scaled
  std::optional<float> regularization = {};
};
struct OptimizedClones {
  CloneLosses losses;
  std::vector<NamedTensor>
      gradients;  // of the total loss, by variable, on its device: its grad(), which the next call writes anew;
                  // undefined of a variable that no clone's backward reached: a step leaves it alone
};

using LossFunction = std::function<Tensor(const Tensor& outputs, const Tensor& targets)>;
// A scalar that depends on the parameters alone, of the first clone: it is added to the total loss once. Under loss
// scaling scale both.
using RegularizationFunction = std::function<Tensor(nn::Module& clone)>;

// Forward and backward of each clone on its equal part of the rows, a thread a clone; gradients add up in the
// variables' grad().
OptimizedClones optimize_clones(const Clones& clones, const Tensor& inputs, const Tensor& targets,
                                const LossFunction& loss, const RegularizationFunction& regularization = {});

// One list a clone, alike in names and shapes: their sums, in the order of the clones, on `device`. Throws
// InvalidArgument with the clone and the variable that differ. A gradient that is undefined counts as zero; where all
// are, so is the sum.
std::vector<NamedTensor> sum_clones_gradients(const std::vector<std::vector<NamedTensor>>& clone_gradients,
                                              Device& device);

// "<variable>/gradient", a histogram, and "<variable>/gradient_norm", its Euclidean norm. Logs which variables have no
// gradient.
void add_gradients_summaries(SummaryWriter& writer, const std::vector<NamedTensor>& gradients, std::int64_t step);

// A step: returns its total loss, nothing when the samples are at an end. `model` and `optimizer` are what train()
// saves; null: nothing.
struct TrainOp {
  std::function<std::optional<float>()> run;
  nn::Module* model = nullptr;
  optim::Optimizer* optimizer = nullptr;
};
using SummaryOp = std::function<void(SummaryWriter& writer, std::int64_t step)>;

struct DeployOptions {
  std::function<std::optional<std::pair<Tensor, Tensor>>()> next_batch;  // inputs and targets of a step, a sample a row
  RegularizationFunction regularization = {};
  bool summarize_gradients = false;
  std::shared_ptr<ProcessGroup> group = nullptr;  // of this rank alone, for a job of several ranks; null: a job of one
};
struct DeployedModel {
  TrainOp train_op;      // refers to the members below
  SummaryOp summary_op;  // losses of the last step, gradients if they were asked for
  std::shared_ptr<const CloneLosses> losses;
  std::shared_ptr<Clones> clones;
  std::shared_ptr<optim::Optimizer> optimizer;
};
// Throws InvalidArgument in a job of several ranks without .group: each would train by itself.
DeployedModel deploy(const DeploymentConfig& config, const Training& training, const DeployOptions& options);

struct TrainLoopOptions {
  std::int64_t number_of_steps = 0;  // counted from the first one ever, see below; 0: until the samples are at an end
  std::int64_t log_every_n_steps = 10;
  std::int64_t save_summaries_steps = 100;  // and after the last one
};
// Runs steps, logs "global step 10: loss = 0.6931 (0.012 s/step)", writes summaries and, at the end, a checkpoint into
// log_dir/checkpoints (train/checkpoint.h), from which a later call goes on. Returns the last loss. Throws
// InvalidArgument for options below 0 and a train_op without run; Error, with nothing saved, where the loss is no
// number; what the functions, the writer and the checkpoint throw.
float train(const TrainOp& train_op, const std::string& log_dir, const SummaryOp& summary_op = {},
            const TrainLoopOptions& options = {});

}  // namespace lockstep::train
#pragma GCC visibility pop
