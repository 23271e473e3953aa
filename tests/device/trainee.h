// A training on a device whose step can be recorded: its batches are copied into persistent tensors.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "lockstep/autograd/autocast.h"
#include "lockstep/ddp/ddp.h"
#include "tests/support/device_training.h"
#include "tests/support/gpu_ranks.h"
#include "tests/support/in_mib.h"

namespace lockstep::testing {

struct Trainee {
  Trainee(const std::shared_ptr<ProcessGroup>& group, Device& device, const CommHook& hook = {})
      : Trainee(group, device, {.bucket_cap_mb = {in_mib(256), in_mib(512)}, .comm_hook = hook}) {}
  Trainee(const std::shared_ptr<ProcessGroup>& group, Device& device, const DistributedDataParallelOptions& options)
      : group(group),
        device(device),
        images(Tensor::empty(kImages, DType::kFloat32, device)),
        labels(Tensor::empty({kImages[0]}, DType::kInt64, device)) {
    manual_seed(3);
    net = std::make_unique<SmallNet>();
    net->to(device);
    ddp = std::make_unique<DistributedDataParallel>(*net, group, options);
    sgd = std::make_unique<optim::SGD>(ddp->parameters(), optim::SGDOptions{.lr = 0.05F, .momentum = 0.9F});
  }
  void fill(int number) const {
    const data::Batch batch = small_batch(number * group->world_size() + group->rank());
    images.copy_from(batch.inputs());
    labels.copy_from(batch.targets());
  }
  Tensor step() const {
    return train_step([&](const Tensor& x) { return (*ddp)(x); }, *sgd, {images, labels});
  }
  CapturedStep captured(const CaptureOptions& options = {}) const {
    return ddp->capture([this] { return step(); }, options);
  }
  // Losses and weights after `steps` calls of `each`.
  template <typename Step> Training train(int steps, Step&& each) const {
    Training result;
    for (int number = 0; number < steps; ++number) {
      fill(number);
      result.losses.push_back(each(number).item());
    }
    result.weights = weights_of(*net);
    return result;
  }

  std::shared_ptr<ProcessGroup> group;
  Device& device;
  Tensor images, labels;
  std::unique_ptr<SmallNet> net;
  std::unique_ptr<DistributedDataParallel> ddp;
  std::unique_ptr<optim::SGD> sgd;
};

// A step in 16 bits; `sgd` uses the scaler, too.
inline Tensor scaled_step(const Trainee& trainee, DType type, optim::LossScaler& scaler, optim::SGD& sgd) {
  const AutoCast half(type);
  const Tensor loss = nn::cross_entropy((*trainee.ddp)(trainee.images), trainee.labels);
  sgd.zero_grad();
  scaler.scale(loss).backward();
  sgd.step();
  return loss;
}

inline void expect_counts(const CapturedStep& step, std::size_t eager, std::size_t recorded, std::size_t replayed) {
  EXPECT_EQ(step.counts().eager, eager);
  EXPECT_EQ(step.counts().recorded, recorded);
  EXPECT_EQ(step.counts().replayed, replayed);
}

}  // namespace lockstep::testing
