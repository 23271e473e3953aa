// One model on several devices of this process: a copy on each, and a thread for each copy. `mirrored`,
// `data_parallel`, `towers` and train/deploy.h are made of this; their files say which values move, and when.
#pragma once

#include <functional>
#include <vector>

#include "src/autograd/engine/device_threads.h"
#include "src/train/strategies/model_copies.h"

namespace lockstep::train {

// Used from one thread, apart from what run() calls.
class DeviceCopies {
 public:
  // Makes a copy for each device, in order. All have the values of `variables`, a further copy that does not compute,
  // or if it is null those of the first copy. `strategy` begins the messages.
  DeviceCopies(const char* strategy, const Training& training, const std::vector<Device*>& devices,
               const Replica* variables = nullptr);

  int count() const { return static_cast<int>(copies_.size()); }
  Replica& operator[](int copy) { return copies_[static_cast<std::size_t>(copy)]; }
  const Replica& operator[](int copy) const { return copies_[static_cast<std::size_t>(copy)]; }
  TrafficCount& traffic() { return traffic_; }
  const TrafficCount& traffic() const { return traffic_; }

  // Calls work(0), ..., work(count() - 1), each on the thread of its copy: see DeviceThreads.
  void run(const std::function<void(int copy)>& work) { threads_.run(work); }

  // -- scatter: from `model`, which is `variables` or the first copy, to all other copies

  // Copies what users change on the model between steps: the modes of its modules, and frozen parameters.
  void scatter_changes(const Replica& model);
  void scatter_parameters(const Replica& model);
  void scatter_buffers(const Replica& model);

  // Throws InvalidArgument unless there are as many inputs as targets, and at least one.
  void check_samples(const Tensor& inputs, const Tensor& targets) const;
  // Also unless the copies divide them.
  void check_batch(const Tensor& inputs, const Tensor& targets) const;
  // Whether the copy has rows of a batch: with fewer rows than copies the last ones have none.
  bool has_rows(const Tensor& batch, int copy) const;
  // The copy's part of the rows of a batch (see rows_of()), on its device.
  Tensor part_of(const Tensor& batch, int copy) const;
  // Counts that each copy has received its part.
  void count_parts(const Tensor& batch);

  // -- compute

  // Within run(): the outputs of a copy for its part of the inputs.
  Tensor forward(int copy, const Tensor& inputs);
  // Within run(): forward, loss and backward of a copy. Returns its total loss, the mean over the copy's part, which
  // the device may still be computing; the gradient has the factor weight_of_part(). A copy without rows has no
  // gradients, and its loss is undefined. `scaler`, the optimizer's, may be null.
  Tensor compute_gradient(const Training& training, int copy, const Tensor& inputs, const Tensor& targets,
                          optim::LossScaler* scaler);
  // The same for all copies; 0 for a copy without rows. Waits for the devices.
  std::vector<float> compute_gradients(const Training& training, const Tensor& inputs, const Tensor& targets,
                                       optim::LossScaler* scaler);
  StepLosses& losses() { return losses_; }  // of the first copy in the last step
  const StepLosses& losses() const { return losses_; }

  // -- gather

  // A parameter that the backward passes of some copies did not reach gets a gradient of zeros there. One that none
  // reached has no gradient, and an optimizer leaves it alone, as under ddp.
  void zero_missing_gradients();
  // The same, and then adds the copies' gradients, in the order of the copies, and scales the sums: into the gradients
  // of `variables`, which may be the first copy.
  void sum_gradients(const Replica& variables, float factor = 1);

 private:
  void prepare_sums(const Replica& variables);

  const char* const strategy_;
  std::vector<Replica> copies_;
  Tensors received_;  // by parameter, on the device of the sums
  StepLosses losses_;
  TrafficCount traffic_;
  DeviceThreads threads_;
};

// The mean over the batch of the copies' losses, which are means over their parts.
float mean_of(const std::vector<float>& losses, const Tensor& batch);

}  // namespace lockstep::train
