// Functions for strategies: a model on a device, copies between models, equal parts of a batch, many gradients in one
// piece of memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/nn/added_losses.h"
#include "lockstep/tensor/random.h"
#include "lockstep/train/strategy.h"

namespace lockstep::train {

// The logical GPUs, or if there are none the logical CPUs.
std::vector<Device*> default_devices();

// Counts the bytes between devices. Not thread-safe.
class TrafficCount {
 public:
  explicit TrafficCount(const std::vector<Device*>& devices);
  // Ignores a copy within one device, and devices that were not given to the constructor.
  void add(const Device& from, const Device& to, std::size_t bytes);
  std::vector<DeviceTraffic> all() const { return all_; }

 private:
  std::vector<DeviceTraffic> all_;
};

struct Replica {
  Device* device = nullptr;
  std::unique_ptr<nn::Module> model;
  std::vector<NamedTensor> parameters, buffers;  // the trained parameters; the statistics
  std::vector<NamedTensor> frozen;               // parameters that are not trained
  std::vector<std::uint64_t> frozen_versions;    // versions of the model's frozen parameters when they were copied
};

// Throws InvalidArgument if the model, or a module in it, was not built in the scope (train/strategy_scope.h) that this
// thread is in: it does not belong to this strategy.
void check_built_in_scope(const nn::Module& model);

// Throws InvalidArgument if the model has nothing to train.
Replica make_replica(const Training& training, Device& device);

// Copies the model's entire state, with frozen parameters, to a replica that was initialised with other random numbers.
// Throws InvalidArgument if their parameters differ.
void load_state(const Replica& model, Replica& replica);

// Copies modes module by module: a model in training mode may hold modules in eval mode.
void copy_modes(const nn::Module& from, nn::Module& to);

// Copies to a replica what users change on the model between steps: the mode of each module, and frozen parameters
// whose version() has changed.
void follow_model(const Replica& model, Replica& replica, TrafficCount& traffic);

// Throws InvalidArgument, with the strategy's name, if Training::optimizer() returns null.
std::unique_ptr<optim::Optimizer> make_optimizer(const char* strategy, const Training& training,
                                                 const std::vector<NamedTensor>& parameters);

// "no LossScaler", or a noun phrase with its scale and options, which ranks compare.
std::string description_of(const optim::LossScaler* scaler);

// Copies values in order, and counts their bytes.
void copy_values(const std::vector<NamedTensor>& from, const std::vector<NamedTensor>& to, TrafficCount& traffic);

// Gives the parameter a gradient of zeros.
void zero_gradient(const Tensor& parameter);

// Rows [begin, begin + count) of a batch: part `part` of `parts`, which are equal if the rows can be divided; else the
// first ones have one row more, and with fewer rows than parts the last ones have none.
struct PartRows {
  std::int64_t begin = 0, count = 0;
};
PartRows rows_of(std::int64_t rows, int part, int parts);
// The factor of a part's loss in the mean of the parts' losses, so that this is the mean over all rows: 1 for equal
// parts.
float weight_of_part(const Tensor& whole, int part, int parts);

// Part `part` of `parts` of the rows, on `device`: a view if the rows are there already, otherwise a copy.
Tensor rows_of_part(const char* strategy, const Tensor& whole, int part, int parts, Device& device);
// The sample numbers of that part's rows, if all rows have the numbers `numbers`.
SampleNumbers numbers_of_part(const SampleNumbers& numbers, const Tensor& whole, int part, int parts);

// A view of these rows of a batch.
Tensor view_of_rows(const Tensor& whole, const PartRows& rows);

// Runs backward with the factor `weight`; nothing is multiplied if it is 1.
void weighted_backward(const Tensor& loss, float weight);

// Throws InvalidArgument unless both tensors hold the same number of samples, and at least one.
void check_samples(const char* strategy, const Tensor& inputs, const Tensor& targets);
// Throws InvalidArgument unless both tensors hold the same number of samples, and the devices divide it.
void check_batch(const char* strategy, const Tensor& inputs, const Tensor& targets, std::size_t devices);

// `floats`, rounded up to entire cache lines: each gradient in a shared piece of memory begins on a line.
std::int64_t whole_lines(std::int64_t floats);
// A view of `count` floats of `all`, from number `begin` on.
Tensor floats_of(const Tensor& all, std::int64_t begin, std::int64_t count);
// Throws InvalidArgument, with the strategy's name, if a parameter has another type.
void check_float32(const char* strategy, const std::vector<NamedTensor>& parameters);

// options.group, otherwise the default group. If the program has made no group, that of the job that the environment
// describes, made by init_process_group(): it lasts as long as its callers hold it. Null for a strategy of one process
// in a job of one.
std::shared_ptr<ProcessGroup> group_of(const StrategyOptions& options, bool of_one_process = false);
// This process's place in the job that the environment describes. Does not communicate.
Place place_in_job();

// Throws InvalidArgument under an AutoCast.
void check_no_autocast(const char* strategy);

// Throws InvalidArgument if the loss is not a scalar.
Tensor loss_of(const LossFunction& loss, nn::Module& model, const Tensor& outputs, const Tensor& targets);

// The losses of a step on one device, without history: see Strategy::step_losses().
class StepLosses {
 public:
  void clear() { losses_.clear(); }
  void add(const std::string& name, const Tensor& loss);
  std::vector<NamedLoss> values() const;

 private:
  std::vector<NamedTensor> losses_;
};

// The total loss of a copy: loss_of(), plus what its modules added in its forward, for which `added` was made; these
// are multiplied by the loss scale, as Training::loss itself does, unless `scaler` is null. Stores the losses in `kept`
// unless it is null.
Tensor total_loss(const Training& training, nn::Module& model, const Tensor& outputs, const Tensor& targets,
                  const nn::AddedLosses& added, optim::LossScaler* scaler, StepLosses* kept);
// The added losses' sum times the loss scale; undefined if there are none.
Tensor scaled_sum(const nn::AddedLosses& added, optim::LossScaler* scaler);
// Null: none.
optim::LossScaler* loss_scaler_of(optim::Optimizer* optimizer);

}  // namespace lockstep::train
