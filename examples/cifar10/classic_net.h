// The network of the recipe `classic`, and the losses of its towers.
#pragma once

#include <lockstep/lockstep.h>

#include <map>
#include <memory>
#include <mutex>
#include <vector>

class ClassicLosses;

// Images (N, 24, 24, 3) to logits (N, 10).
class ClassicNet : public lockstep::nn::Sequential {
 public:
  // `losses` is notified of each forward in training; null for evaluation.
  explicit ClassicNet(ClassicLosses* losses = nullptr);
  lockstep::Tensors forward_all(const lockstep::Tensors& inputs) override;
  std::string kind() const override { return "ClassicNet"; }

  // 0.004 times half the sum of squares of each weight that decays: "local3/weight_loss", "local4/weight_loss".
  std::vector<lockstep::NamedTensor> weight_losses() const;
  // Outputs of the layers with parameters, by name, without recording.
  std::vector<lockstep::NamedTensor> activations(const lockstep::Tensor& images);

 private:
  lockstep::nn::Linear &local3_, &local4_;
  ClassicLosses* losses_;
};

// The losses of a step: cross_entropy, weight losses, and their sum total_loss. A strategy calls enter() and
// total_loss() from the threads of its devices; all other calls come from the thread that trains.
class ClassicLosses {
 public:
  // `group` is the job's, which ends when a loss is not finite.
  explicit ClassicLosses(std::shared_ptr<lockstep::ProcessGroup> group) : group_(std::move(group)) {}
  void begin_step(std::int64_t step) { step_ = step; }
  // A tower has begun its forward: the next total_loss() on its device uses its weights.
  void enter(const ClassicNet& tower, const lockstep::Device& device);
  // Returns total_loss. Throws Error with step and rank if it is not finite: before backward, so that the weights do
  // not change.
  lockstep::Tensor total_loss(const lockstep::Tensor& logits, const lockstep::Tensor& labels);

  // After a step: the losses of one device, total_loss last.
  std::vector<lockstep::train::NamedLoss> of_device(const lockstep::Device& device) const;

 private:
  std::shared_ptr<lockstep::ProcessGroup> group_;
  mutable std::mutex mutex_;  // guards the maps
  std::map<const lockstep::Device*, const ClassicNet*> towers_;
  std::map<const lockstep::Device*, std::vector<lockstep::NamedTensor>> losses_;
  std::int64_t step_ = 0;
};
