// ZeroRedundancyOptimizer and StepInBackward on simulated GPUs, with the nccl backend and a stub of NCCL.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "lockstep/ddp/step_in_backward.h"
#include "lockstep/ddp/zero.h"
#include "lockstep/reduce/hooks.h"
#include "tests/device/trainee.h"
#include "tests/support/message_of.h"

namespace lockstep::testing {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;

struct ZeroRank : Trainee {
  template <typename... Options>
  ZeroRank(const std::shared_ptr<ProcessGroup>& group, Device& device, Options&&... options)
      : Trainee(group, device, std::forward<Options>(options)...), zero(*ddp, *sgd) {}
  ZeroRedundancyOptimizer zero;
};

void expect_nearly(const Training& trained, const Training& expected) {
  for (std::size_t p = 0; p < expected.weights.size(); ++p)
    for (std::size_t i = 0; i < expected.weights[p].size(); ++i)
      ASSERT_NEAR(trained.weights[p][i], expected.weights[p][i], 1e-6F);
}

TEST(DeviceZero, RanksHaveThePlainWeightsAndAShareOfTheState) {
  for (const int ranks : {1, 2, 4})
    EXPECT_THAT(run_gpu_ranks(ranks,
                              [](auto group, RecordingDevice& device) {
                                const Trainee plain(group, device);
                                const ZeroRank rank(group, device);
                                const Training expected = plain.train(5, [&](int) { return plain.step(); });
                                expect_nearly(rank.train(5, [&](int) { return rank.step(); }), expected);
                                check_replicas_equal(*group, rank.net->named_parameters(), "weights");
                                std::size_t state = 0;
                                for (const auto& [name, tensor] : plain.sgd->state()) state += tensor.bytes();
                                auto all = static_cast<std::int64_t>(rank.zero.state_bytes());
                                EXPECT_LE(rank.zero.state_bytes(),
                                          state / static_cast<std::size_t>(group->world_size()) +
                                              64 * plain.sgd->state().size());
                                group->all_reduce(std::span(&all, 1));
                                EXPECT_EQ(all, static_cast<std::int64_t>(state)) << "each element has one owner";
                              }),
                Each(""));
}

TEST(DeviceZero, TheHostWaitsForNothing) {
  EXPECT_THAT(run_gpu_ranks(2,
                            [](auto group, RecordingDevice& device) {
                              const ZeroRank rank(group, device);
                              rank.train(2, [&](int) { return rank.step(); });
                              device.default_stream().synchronize();
                              device.clear_log();
                              device.hold_default_stream();
                              rank.step();
                              EXPECT_EQ(device.counts().host_waits, 0);
                              EXPECT_THAT(device.log(), Contains(HasSubstr("sgd")));
                              group->barrier();
                              device.release_default_stream();
                            }),
              Each(""));
}

constexpr float kZeroLimit = 0.05F;  // below the norm of each step
DistributedDataParallelOptions clipping() {
  return {.bucket_cap_mb = {in_mib(256), in_mib(512)}, .max_grad_norm = kZeroLimit};
}

TEST(DeviceZero, ClipsAndSkipsAsThePlainStepDoes) {
  for (const int ranks : {1, 2, 3})
    EXPECT_THAT(run_gpu_ranks(ranks,
                              [](auto group, RecordingDevice& device) {
                                DistributedDataParallelOptions options = clipping();
                                options.on_nonfinite_gradient = OnNonfiniteGradient::kSkipStep;
                                const Trainee plain(group, device, options);
                                const ZeroRank rank(group, device, options);
                                const auto train = [&](const Trainee& trainee) {
                                  return trainee.train(5, [&](int number) {
                                    if (number == 2 && group->rank() == 0) trainee.images.fill(INFINITY);
                                    return trainee.step();
                                  });
                                };
                                const Training expected = train(plain);
                                expect_nearly(train(rank), expected);
                                EXPECT_EQ(rank.ddp->skipped_steps(), 1);
                                EXPECT_EQ(rank.ddp->last_skipped(), plain.ddp->last_skipped());
                                EXPECT_NEAR(rank.ddp->last_grad_norm(), plain.ddp->last_grad_norm(), 1e-5F);
                                EXPECT_GT(rank.ddp->last_grad_norm(), kZeroLimit);
                                check_replicas_equal(*group, rank.net->named_parameters(), "weights");
                              }),
                Each(""));
}

TEST(DeviceZero, ClippingAndHooksLetTheHostGoOn) {
  for (const bool has_hook : {false, true})
    EXPECT_THAT(run_gpu_ranks(2,
                              [&](auto group, RecordingDevice& device) {
                                DistributedDataParallelOptions options = clipping();
                                if (has_hook) options.comm_hook = hooks::bf16();
                                const Trainee plain(group, device, options);
                                if (has_hook) options.comm_hook = hooks::bf16();
                                const ZeroRank rank(group, device, options);
                                const Training expected = plain.train(3, [&](int) { return plain.step(); });
                                expect_nearly(rank.train(3, [&](int) { return rank.step(); }), expected);
                                check_replicas_equal(*group, rank.net->named_parameters(), "weights");
                                device.default_stream().synchronize();
                                device.clear_log();
                                device.hold_default_stream();
                                rank.step();
                                EXPECT_EQ(device.counts().host_waits, 0);
                                group->barrier();
                                device.release_default_stream();
                              }),
                Each(""));
}

TEST(DeviceZero, AGraphIsRefused) {
  EXPECT_THAT(run_gpu_ranks(2,
                            [](auto group, RecordingDevice& device) {
                              const ZeroRank rank(group, device);
                              EXPECT_THAT(message_of([&] {
                                            CapturedStep step = rank.captured({.warm_up = 1});
                                            for (int i = 0; i < 4; ++i) step();
                                          }),
                                          HasSubstr("the host manages the withheld gradients"));
                            }),
              Each(""));
}

TEST(DeviceStepInBackward, RanksHaveThePlainWeights) {
  EXPECT_THAT(run_gpu_ranks(2,
                            [](auto group, RecordingDevice& device) {
                              const Trainee plain(group, device), rank(group, device);
                              const Training expected = plain.train(5, [&](int) { return plain.step(); });
                              const StepInBackward in_backward(*rank.ddp, *rank.sgd);
                              const Training trained = rank.train(5, [&](int) {
                                rank.sgd->zero_grad();
                                const Tensor loss = nn::cross_entropy((*rank.ddp)(rank.images), rank.labels);
                                loss.backward();
                                return loss;
                              });
                              expect_nearly(trained, expected);
                              check_replicas_equal(*group, rank.net->named_parameters(), "weights");
                            }),
              Each(""));
}

}  // namespace
}  // namespace lockstep::testing
