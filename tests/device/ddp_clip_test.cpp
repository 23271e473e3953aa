// max_grad_norm and on_nonfinite_gradient on simulated GPUs: the CPU's bits, no waiting of the host unless a step may
// stop, graphs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "lockstep/ddp/ddp.h"
#include "lockstep/optim/clip.h"
#include "tests/support/device_training.h"
#include "tests/support/gpu_ranks.h"
#include "tests/support/in_mib.h"

namespace lockstep::testing {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr float kLimit = 0.25F;  // below the norm of each step

DistributedDataParallelOptions options_with(float limit,
                                            OnNonfiniteGradient on_nonfinite = OnNonfiniteGradient::kIgnore) {
  return {.bucket_cap_mb = {in_mib(256), in_mib(512)}, .max_grad_norm = limit, .on_nonfinite_gradient = on_nonfinite};
}

struct ClippingRank {
  ClippingRank(const std::shared_ptr<ProcessGroup>& group, Device& device,
               const DistributedDataParallelOptions& options)
      : group(group), device(device) {
    net.to(device);
    ddp = std::make_unique<DistributedDataParallel>(net, group, options);
    sgd = std::make_unique<optim::SGD>(ddp->parameters(), optim::SGDOptions{.lr = 0.05F, .momentum = 0.9F});
    images = Tensor::empty(kImages, DType::kFloat32, device),
    labels = Tensor::empty({kImages[0]}, DType::kInt64, device);
  }
  void fill(int number) const {
    const data::Batch batch = small_batch(number * group->world_size() + group->rank());
    images.copy_from(batch.inputs());
    labels.copy_from(batch.targets());
  }
  // Clips between backward and step if a limit is given.
  Tensor step(float limit = 0) const {
    const Tensor loss = nn::cross_entropy((*ddp)(images), labels);
    sgd->zero_grad();
    loss.backward();
    if (limit > 0) optim::clip_grad_norm(ddp->parameters(), limit);
    sgd->step();
    return loss;
  }
  std::vector<std::vector<float>> train(int steps, const std::function<Tensor()>& each) const {
    for (int number = 0; number < steps; ++number) {
      fill(number);
      each();
    }
    return weights_of(net);
  }

  std::shared_ptr<ProcessGroup> group;
  Device& device;
  const bool is_seeded = (manual_seed(3), true);  // before the net draws its weights
  SmallNet net;
  std::unique_ptr<DistributedDataParallel> ddp;
  std::unique_ptr<optim::SGD> sgd;
  Tensor images, labels;
};

TEST(DeviceClip, HasTheCpusBits) {
  RecordingDevice device;
  const auto group = group_of_one(device);
  for (const auto on_nonfinite : {OnNonfiniteGradient::kIgnore, OnNonfiniteGradient::kThrow}) {
    const ClippingRank here(group, plain_cpu(), options_with(kLimit, on_nonfinite)),
        there(group, device, options_with(kLimit, on_nonfinite));
    EXPECT_EQ(there.train(4, [&] { return there.step(); }), here.train(4, [&] { return here.step(); }));
    EXPECT_EQ(there.ddp->last_grad_norm(), here.ddp->last_grad_norm());
    EXPECT_GT(here.ddp->last_grad_norm(), kLimit) << "nothing was clipped";
  }
}

TEST(DeviceClip, RanksClipAsBetweenBackwardAndStepAndTheirHostsWaitForNothing) {
  EXPECT_THAT(run_gpu_ranks(2,
                            [&](auto group, RecordingDevice& device) {
                              const ClippingRank by_hand(group, device, options_with(0));
                              const auto expected = by_hand.train(4, [&] { return by_hand.step(kLimit); });
                              const ClippingRank rank(group, device, options_with(kLimit));
                              const auto weights = rank.train(4, [&] { return rank.step(); });
                              for (std::size_t p = 0; p < expected.size(); ++p)
                                for (std::size_t i = 0; i < expected[p].size(); ++i)
                                  ASSERT_NEAR(weights[p][i], expected[p][i], 1e-6F);
                              check_replicas_equal(*group, rank.net.named_parameters(), "weights");
                              device.default_stream().synchronize();
                              device.clear_log();
                              device.hold_default_stream();
                              rank.step();
                              EXPECT_EQ(device.counts().host_waits, 0);
                              EXPECT_THAT(device.log(), Contains(HasSubstr("square_sums")));
                              group->barrier();
                              device.release_default_stream();
                            }),
              Each(""));
}

TEST(DeviceClip, ReplaysClipAndTheNormIsTheirs) {
  RecordingDevice device;
  const auto group = group_of_one(device);
  const ClippingRank eager(group, device, options_with(kLimit)), rank(group, device, options_with(kLimit));
  const auto expected = eager.train(8, [&] { return eager.step(); });
  CapturedStep step = rank.ddp->capture([&] { return rank.step(); });
  EXPECT_EQ(rank.train(8, [&] { return step(); }), expected);
  EXPECT_GE(step.counts().replayed, 3U);
  EXPECT_EQ(rank.ddp->last_grad_norm(), eager.ddp->last_grad_norm());
}

TEST(DeviceClip, AStepWithABadGradientOfOneRankIsSkippedOnAll) {
  EXPECT_THAT(run_gpu_ranks(2,
                            [&](auto group, RecordingDevice& device) {
                              const ClippingRank rank(group, device, options_with(0, OnNonfiniteGradient::kSkipStep));
                              rank.train(2, [&] { return rank.step(); });
                              const auto before = weights_of(rank.net);
                              if (group->rank() == 1) rank.images.fill(std::numeric_limits<float>::infinity());
                              rank.step();
                              EXPECT_EQ(rank.ddp->skipped_steps(), 1);
                              EXPECT_THAT(rank.ddp->last_skipped(),
                                          HasSubstr("step 3: gradients are infinite or NaN, on rank 1: '"));
                              EXPECT_EQ(weights_of(rank.net), before);
                              rank.train(1, [&] { return rank.step(); });
                              EXPECT_NE(weights_of(rank.net), before);
                              check_replicas_equal(*group, rank.net.named_parameters(), "weights");
                            }),
              Each(""));
}

}  // namespace
}  // namespace lockstep::testing
