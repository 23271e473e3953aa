// What strategies share: a model on each device, copies between them, a batch cut into equal parts, one memory for many
// gradients.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/tensor/random.h"
#include "lockstep/train/strategy.h"

namespace lockstep::train {

// The GPUs, or where there are none the CPU's parts.
std::vector<Device*> default_devices();

// Bytes between devices. Not thread-safe.
class TrafficCount {
 public:
  explicit TrafficCount(const std::vector<Device*>& devices);
  // Nothing where both are the same device, or a device is none of these.
  void add(const Device& from, const Device& to, std::size_t bytes);
  std::vector<DeviceTraffic> all() const { return all_; }

 private:
  std::vector<DeviceTraffic> all_;
};

struct Replica {
  Device* device = nullptr;
  std::unique_ptr<nn::Module> model;
  std::vector<NamedTensor> parameters, buffers;  // those that are trained; the statistics
  std::vector<NamedTensor> frozen;
  std::vector<std::uint64_t> frozen_versions;  // of the model's that this one has copied
};

// Throws InvalidArgument where the model, or a module in it, was built in another scope (train/strategy_scope.h) than
// this thread is in, or outside of all of them: it is no variable of this strategy.
void check_built_in_scope(const nn::Module& model);

// One a device, all with the values of the first. Throws InvalidArgument where two models have unlike parameters.
std::vector<Replica> make_replicas(const Training& training, const std::vector<Device*>& devices);
// The same for a single device.
Replica make_replica(const Training& training, Device& device);

// The model's whole state, frozen parameters too, into a replica of another draw. Throws InvalidArgument where their
// parameters differ.
void load_state(const Replica& model, Replica& replica);

// What users change on the model between steps, into a replica: the mode of each module, and frozen parameters whose
// version() has moved.
void follow_model(const Replica& model, Replica& replica, TrafficCount& traffic);

// Throws InvalidArgument, with the strategy's name, when Training::optimizer() returns none.
std::unique_ptr<optim::Optimizer> make_optimizer(const char* strategy, const Training& training,
                                                 const std::vector<NamedTensor>& parameters);

// "no LossScaler", or a noun phrase with its scale and options: what ranks must have in common.
std::string description_of(const optim::LossScaler* scaler);

// Copies values in order, and counts them.
void copy_values(const std::vector<NamedTensor>& from, const std::vector<NamedTensor>& to, TrafficCount& traffic);

// After the backward passes of all: a parameter that some of them did not reach has a gradient of zeros there. One that
// none reached has no gradient, and an optimizer leaves it alone, as under ddp. Waits for the devices of what it fills.
void zero_missing_gradients(const std::vector<Replica*>& replicas);
// The same of one of several, where others may have reached what it did not.
void zero_missing_gradients(const Replica& replica);

// Part `part` of `parts` equal parts of the rows, on `device`: a view where it is there already, otherwise a copy.
// The parts are equal, see check_batch().
Tensor rows_of_part(const char* strategy, const Tensor& whole, int part, int parts, Device& device);
// The numbers of that part's rows, where the whole's rows have the numbers `numbers`.
SampleNumbers numbers_of_part(const SampleNumbers& numbers, const Tensor& whole, int part, int parts);

// Throws InvalidArgument unless both tensors hold as many samples, and the devices divide them.
void check_batch(const char* strategy, const Tensor& inputs, const Tensor& targets, std::size_t devices);

// Gradients in one piece of memory each begin on a cache line: so many floats, rounded up to whole lines.
std::int64_t whole_lines(std::int64_t floats);
// A view of `count` floats of `all`, from number `begin` on.
Tensor floats_of(const Tensor& all, std::int64_t begin, std::int64_t count);
// Throws InvalidArgument, with the strategy's name, where one of them has another type.
void check_float32(const char* strategy, const std::vector<NamedTensor>& parameters);

// options.group, else the default group. Where a program has made none, the group of the job that the environment
// describes, as init_process_group() makes it: it lasts as long as its callers hold it. Null for a strategy of one
// process in a job of one.
std::shared_ptr<ProcessGroup> group_of(const StrategyOptions& options, bool of_one_process = false);
// This process's place in the job that the environment describes. Meets no other rank.
Place place_in_job();

// Throws InvalidArgument under an AutoCast.
void check_no_autocast(const char* strategy);

// Throws InvalidArgument when it is no scalar.
Tensor loss_of(const Training& training, const Tensor& outputs, const Tensor& targets);

}  // namespace lockstep::train
