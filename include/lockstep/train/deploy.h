// Clones of a model on the devices of one process, step by step as in Slim's model_deploy, for programs written for it.
// make_strategy("towers") does the same in one piece.
//
//   data::Reader reader(data::Pipeline(images).shuffle().repeat().batch(128));
//   const train::DeployedModel deployed =
//       train::deploy({.num_clones = 2},
//                     {.model = [] { return std::make_unique<Net>(); },
//                      .optimizer =
//                          [](std::vector<NamedTensor> variables) {
//                            return std::make_unique<optim::SGD>(std::move(variables), optim::SGDOptions{.lr = 0.1F});
//                          },
//                      .loss = nn::cross_entropy},
//                     {.reader = &reader, .summarize_gradients = true});
//   train::train(deployed.train_op, "runs/first", deployed.summary_op, {.number_of_steps = 1000});
//
// examples/slim.cpp is this program.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/data/reader.h"
#include "lockstep/train/deployment_config.h"
#include "lockstep/train/strategy.h"
#include "lockstep/train/summary_writer.h"
#include "lockstep/train/train_loop.h"

#pragma GCC visibility push(default)
namespace lockstep::train {

struct Clone {
  std::string scope;
  Device* device = nullptr;
  nn::Module* model = nullptr;  // its values are the variables' of the last step
  Tensor outputs;               // of the last step, on `device`; undefined before it
};

// The variables, and the clones that compute with copies of them. Use it from one thread.
class Clones {
 public:
  ~Clones();
  Clones(Clones&&) noexcept;
  Clones& operator=(Clones&&) noexcept;
  nn::Module& variables() const;  // on variables_device(); updated by an optimizer and saved, but never computes
  const std::vector<NamedTensor>& parameters() const;  // the trained ones among variables()
  const std::vector<Clone>& all() const;

  struct Impl;
  explicit Clones(std::unique_ptr<Impl> impl);
  Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

// Calls `model` once for the variables and once for each clone; all get the values of the first. Throws InvalidArgument
// for more clones than devices, and with parameter servers, which keep the variables outside this process.
Clones create_clones(const DeploymentConfig& config, const std::function<std::unique_ptr<nn::Module>()>& model);

// Returns a clone's share of the total loss, loss / num_clones, as "clone_1/scaled_clone_loss"; for a single clone the
// loss itself, as "clone_loss".
NamedTensor gather_clone_loss(const Clone& clone, const Tensor& loss, int num_clones);

struct CloneLosses {
  float total = 0;                // sum of the clones' shares plus the regularization
  std::vector<NamedLoss> clones;  // "clone_0/clone_loss": the mean over the clone's samples, not scaled
  std::optional<float> regularization = {};
};
struct OptimizedClones {
  CloneLosses losses;
  // Gradients of the total loss, by variable and on its device: its grad(), which the next call overwrites. Undefined
  // for a variable that no clone's backward reached; a step does not change it.
  std::vector<NamedTensor> gradients;
};

// Returns a scalar that depends only on the parameters of the first clone. It is added to the total loss once. With
// loss scaling, scale both.
using RegularizationFunction = std::function<Tensor(nn::Module& clone)>;

// Runs forward and backward of each clone on its equal part of the rows, with one thread per clone. A clone's loss
// includes the losses that its modules add (nn/added_losses.h). The gradients are summed in the variables' grad().
OptimizedClones optimize_clones(const Clones& clones, const Tensor& inputs, const Tensor& targets,
                                const LossFunction& loss, const RegularizationFunction& regularization = {});

// Sums one list per clone, with equal names and shapes, in the order of the clones, on `device`. Throws InvalidArgument
// with the clone and the variable that differ. An undefined gradient counts as zero; if all are undefined, so is the
// sum.
std::vector<NamedTensor> sum_clones_gradients(const std::vector<std::vector<NamedTensor>>& clone_gradients,
                                              Device& device);

// The tutorial's average_gradients(): their mean over the towers, on `device`, for an optimizer's variables by name.
// Sums in the order of the towers, as sum_clones_gradients() does, and throws what it throws.
std::vector<NamedTensor> average_gradients(const std::vector<std::vector<NamedTensor>>& tower_gradients,
                                           Device& device = cpu_device());

// Writes "<variable>/gradient", a histogram, and "<variable>/gradient_norm", its Euclidean norm. Logs the variables
// without a gradient.
void add_gradients_summaries(SummaryWriter& writer, const std::vector<NamedTensor>& gradients, std::int64_t step);

struct DeployOptions {
  // One of the two: inputs and targets of a step, one sample per row. A reader outlives the deployed model, and a run
  // that train() resumes continues after the batches that it has had.
  std::function<std::optional<data::Batch>()> next_batch = {};
  data::Reader* reader = nullptr;
  RegularizationFunction regularization = {};
  bool summarize_gradients = false;  // refused with parameter servers, which have the gradients
  // With parameter servers: all workers and servers; null: the default group. Without: this rank alone, in a job of
  // several ranks; null: a job of one rank.
  std::shared_ptr<ProcessGroup> group = nullptr;
};
struct DeployedModel {
  TrainOp train_op;      // refers to the members below
  SummaryOp summary_op;  // losses of the last step, and gradients if requested
  std::shared_ptr<const CloneLosses> losses;
  std::shared_ptr<Clones> clones;
  std::shared_ptr<optim::Optimizer> optimizer;
};
// Throws InvalidArgument in a job of several ranks without .group, because each would train by itself.
//
// With num_ps_tasks parameter servers the job is one of `lockrun --ps num_ps_tasks --workers num_replicas`, and the
// call is collective. All processes call train(): a worker trains its clones on its own batches, with the means of all
// workers' gradients, and .losses are its own; a server serves and returns when the workers have ended, so `deployed`
// must end before the program does. .clones and .optimizer are null: the servers have the variables, and the
// checkpoints have them all. Throws InvalidArgument on all ranks for another number of processes, and for a replica_id
// that is not the worker's.
DeployedModel deploy(const DeploymentConfig& config, const Training& training, const DeployOptions& options);

}  // namespace lockstep::train
#pragma GCC visibility pop
