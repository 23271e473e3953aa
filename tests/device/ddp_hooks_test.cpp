// Comm hooks on simulated GPUs, with the nccl backend and a stub of NCCL: no waiting of the host, graphs, errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/reduce/hooks.h"
#include "tests/device/trainee.h"

namespace lockstep::testing {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;

TEST(DeviceHooks, Bf16IsNearTheAverageAndTheHostWaitsForNothing) {
  EXPECT_THAT(run_gpu_ranks(2,
                            [](auto group, RecordingDevice& device) {
                              const Trainee plain(group, device), half(group, device, hooks::bf16());
                              const Training expected = plain.train(4, [&](int) { return plain.step(); });
                              const Training trained = half.train(4, [&](int) { return half.step(); });
                              for (std::size_t p = 0; p < expected.weights.size(); ++p)
                                for (std::size_t i = 0; i < expected.weights[p].size(); ++i)
                                  ASSERT_NEAR(trained.weights[p][i], expected.weights[p][i], 5e-3F);
                              EXPECT_NE(trained.weights, expected.weights) << "nothing was rounded";
                              check_replicas_equal(*group, half.net->named_parameters(), "weights");
                              device.default_stream().synchronize();
                              device.clear_log();
                              device.hold_default_stream();
                              half.step();
                              EXPECT_EQ(device.counts().host_waits, 0);
                              EXPECT_THAT(device.log(), Contains(HasSubstr("convert")));
                              group->barrier();
                              device.release_default_stream();
                            }),
              Each(""));
}

TEST(DeviceHooks, AGraphRepeatsWhatTheyQueue) {
  for (const auto& make : {+[] { return hooks::bf16(); }, +[] { return hooks::int8({.block = 16}); },
                           +[] { return hooks::top_k({.ratio = 0.1}); }})
    EXPECT_THAT(run_gpu_ranks(2,
                              [&](auto group, RecordingDevice& device) {
                                const Trainee eager(group, device, make()), captured(group, device, make());
                                const Training expected = eager.train(8, [&](int) { return eager.step(); });
                                CapturedStep step = captured.captured();
                                EXPECT_EQ(captured.train(8, [&](int) { return step(); }), expected);
                                EXPECT_GE(step.counts().replayed, 3U);
                              }),
                Each(""));
}

TEST(DeviceHooks, OnesThatCountOnTheHostAreNoPartOfAGraph) {
  for (const auto& make : {+[] { return hooks::power_sgd(); }, +[] { return hooks::post_local_sgd(); }})
    EXPECT_THAT(run_gpu_ranks(2,
                              [&](auto group, RecordingDevice& device) {
                                const Trainee trainee(group, device, make());
                                trainee.captured();
                              }),
                Each(HasSubstr("capture: the comm_hook p")));
}

}  // namespace
}  // namespace lockstep::testing
