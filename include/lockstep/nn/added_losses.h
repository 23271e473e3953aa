// Losses that modules add to the training's loss in their forward, like Keras' add_loss() and TensorFlow's collection
// of losses: regularization, penalties of activations, auxiliary classifiers.
//
//   Tensor forward(const Tensor& x) override {
//     nn::add_loss(0.004f * l2_loss(weight), "local3/weight_loss");
//     return linear(x, weight, bias);
//   }
//
// Every strategy and train::Trainer add them to the loss, so a module needs no more than that. A loop of your own
// collects them:
//
//   nn::AddedLosses added;
//   const Tensor logits = ddp(images);
//   added.total(nn::cross_entropy(logits, labels)).backward();
#pragma once

#include <string>
#include <vector>

#include "lockstep/tensor/named_tensor.h"
#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep::nn {

// From its construction to its destruction, collects the losses that are added on this thread. If several live, the
// last one constructed collects; destroy them in reverse order of construction.
class AddedLosses {
 public:
  AddedLosses();
  ~AddedLosses();
  AddedLosses(const AddedLosses&) = delete;
  AddedLosses& operator=(const AddedLosses&) = delete;

  const std::vector<NamedTensor>& all() const { return losses_; }  // in the order of the calls
  Tensor sum() const;                                              // a float32 scalar; undefined if there are none
  Tensor total(const Tensor& loss) const;                          // loss + sum(), or the loss itself
  bool empty() const { return losses_.empty(); }
  void clear() { losses_.clear(); }

 private:
  friend void add_loss(const Tensor& loss, const std::string& name);

  std::vector<NamedTensor> losses_;
  AddedLosses* const outer_;
};

// Adds a float32 scalar to the losses of this thread's forward. A mean over the samples of the forward, like the loss
// itself: strategies average it over devices and micro-batches. Do not multiply it by a loss scale; strategies do.
// `name` is for logs and summaries; several losses may have the same one.
//
// Nothing happens if no AddedLosses lives and recording is off (NoGrad): in predict(), for example. Throws
// InvalidArgument if no AddedLosses lives while forward is recorded, because it would not be trained; in a function of
// checkpoint() (autograd/activation_checkpoint.h), whose tape is released; and for a tensor that is no float32 scalar.
void add_loss(const Tensor& loss, const std::string& name = "added_loss");

}  // namespace lockstep::nn
#pragma GCC visibility pop
