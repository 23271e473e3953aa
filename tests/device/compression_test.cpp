// Comm hooks that compress, on simulated GPUs (threads), with the nccl backend and a stub of NCCL: with the kernels of
// kernels/cuda, ranks get the same results as on CPUs, in each pass; also the host's waits, the replicas, and
// checkpoints.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <utility>

#include "lockstep/core/philox.h"
#include "lockstep/reduce/hooks.h"
#include "lockstep/reduce/reducer.h"
#include "lockstep/train/checkpoint.h"
#include "tests/device/trainee.h"
#include "tests/kernels/emulated_cuda/table.h"
#include "tests/support/temporary.h"

namespace lockstep::testing {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;

using MakeHook = CommHook (*)();
using Floats = std::vector<float>;

std::vector<GradientInfo> gradients_on(DeviceKind device) {
  std::vector<GradientInfo> all = {{.name = "tall", .count = 40 * 12, .shape = {40, 12}},
                                   {.name = "bias", .count = 41, .shape = {41}},
                                   {.name = "wide", .count = 7 * 65, .shape = {7, 65}},
                                   {.name = "tail", .count = 3}};
  for (GradientInfo& gradient : all) gradient.device = device;
  return all;
}

// A number in [-1, 1) for a rank, pass, gradient and element; one of rank 1's is NaN in the second pass.
float number(int rank, int pass, std::size_t gradient, std::size_t i) {
  if (rank == 1 && pass == 1 && gradient != 1 && i == 2) return std::numeric_limits<float>::quiet_NaN();
  const PhiloxBlock block = philox_block(7, static_cast<std::uint64_t>(rank * 1000 + pass) * 10 + gradient, i);
  return static_cast<float>(block.words[0] >> 8) * 0x1p-23F - 1;
}

Floats on_host(Device& device, const void* data, std::size_t count) {
  Floats values(count);
  device.copy(values.data(), data, count * sizeof(float), device.default_stream());
  device.default_stream().synchronize();
  return values;
}

// Puts this rank's gradients into the reducer, and returns its result.
std::vector<Floats> reduce(Reducer& reducer, Device& device, int rank, int pass) {
  const std::vector<GradientInfo>& gradients = reducer.gradients();
  for (std::size_t g = gradients.size(); g-- > 0;) {
    Floats values(gradients[g].count);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = number(rank, pass, g, i);
    device.upload(reducer.slot(g).data(), values.data(), values.size() * sizeof(float), device.default_stream());
    reducer.mark_ready(g);
  }
  reducer.finish();
  std::vector<Floats> all;
  for (std::size_t g = 0; g < gradients.size(); ++g)
    all.push_back(on_host(device, reducer.slot(g).data(), gradients[g].count));
  return all;
}

std::vector<Floats> state_of(const CommHook& hook) {
  std::vector<Floats> all;
  for (const HookState& state : hook->state())
    if (state.dtype == DType::kFloat32)
      all.push_back(on_host(state.device == nullptr ? cpu_device() : *state.device, state.data, state.count));
  return all;
}

void expect_near(const std::vector<Floats>& actual, const std::vector<Floats>& expected, float bound,
                 const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t g = 0; g < expected.size(); ++g)
    for (std::size_t i = 0; i < expected[g].size(); ++i) {
      if (std::isnan(expected[g][i]) && std::isnan(actual[g][i])) continue;
      ASSERT_NEAR(actual[g][i], expected[g][i], bound) << what << ": " << g << "[" << i << "]";
    }
}

void expect_what_cpus_get(MakeHook make, int ranks, float bound) {
  EXPECT_THAT(
      run_gpu_ranks(
          ranks,
          [&](auto group, RecordingDevice& device) {
            const CommHook there = make(), here = make();
            Reducer on_gpu(group, gradients_on(DeviceKind::kCuda), {.caps = {2000, 100000}, .comm_hook = there});
            Reducer on_cpu(group, gradients_on(DeviceKind::kCpu), {.caps = {2000, 100000}, .comm_hook = here});
            for (int pass = 0; pass < 4; ++pass) {
              const auto expected = reduce(on_cpu, cpu_device(), group->rank(), pass);
              const auto actual = reduce(on_gpu, device, group->rank(), pass);
              const std::string what = there->describe() + ", pass " + std::to_string(pass);
              expect_near(actual, expected, bound, what);
              expect_near(state_of(there), state_of(here), bound, what + ", state");
            }
          }),
      Each(""));
}

TEST(DeviceCompression, GivesWhatCpusGet) {
  const RecordedDevicesCompute emulated(emulated_kernels());
  for (const int ranks : {1, 3}) {
    expect_what_cpus_get([] { return hooks::int8({.block = 32}); }, ranks, 0);
    expect_what_cpus_get([] { return hooks::top_k({.ratio = 0.05}); }, ranks, 0);
    // Sums have another order, and each pass computes factors from them.
    expect_what_cpus_get([] { return hooks::power_sgd({.matrix_rank = 3, .start_step = 1, .min_compression = 1}); },
                         ranks, 5e-4F);
  }
  expect_what_cpus_get([] { return hooks::top_k({.ratio = 0.3, .error_feedback = false}); }, 2, 0);
  expect_what_cpus_get([] { return hooks::power_sgd({.start_step = 0, .warm_start = false, .error_feedback = false}); },
                       2, 5e-4F);
  expect_what_cpus_get(
      [] { return hooks::power_sgd({.matrix_rank = 2, .start_step = 0, .min_compression = 1, .next = hooks::bf16()}); },
      2, 5e-2F);
}

const std::vector<std::pair<MakeHook, const char*>>& makers() {  // and a kernel of each
  static const std::vector<std::pair<MakeHook, const char*>> all = {
      {[] { return hooks::int8({.block = 16}); }, "int8 average"},
      {[] { return hooks::power_sgd({.matrix_rank = 2, .start_step = 1, .min_compression = 1}); },
       "power_sgd orthonormalise"},
      {[] { return hooks::top_k({.ratio = 0.2}); }, "top_k select"}};
  return all;
}

TEST(DeviceCompression, TrainsEqualReplicasAndTheHostWaitsForNothing) {
  for (const auto& [make, kernel] : makers())
    EXPECT_THAT(run_gpu_ranks(2,
                              [&, make = make, kernel = kernel](auto group, RecordingDevice& device) {
                                const Trainee trainee(group, device, make());
                                const Training trained = trainee.train(6, [&](int) { return trainee.step(); });
                                EXPECT_LT(trained.losses.back(), trained.losses.front());
                                check_replicas_equal(*group, trainee.net->named_parameters(), "weights");
                                device.default_stream().synchronize();
                                device.clear_log();
                                device.hold_default_stream();
                                trainee.step();
                                EXPECT_EQ(device.counts().host_waits, 0) << kernel;
                                EXPECT_THAT(device.log(), Contains(HasSubstr(kernel)));
                                group->barrier();
                                device.release_default_stream();
                              }),
                Each(""));
}

int scratches_beside_stream_0(const RecordingDevice& device) {
  int all = 0;
  for (const auto& [stream, scratches] : device.counts().scratches) all += stream != 0 ? scratches : 0;
  return all;
}

// A hook computes on NCCL's stream: its workspaces come from the cache of that stream, and in a graph from the graph's
// own memory.
TEST(DeviceCompression, WorkspacesOnNcclsStreamAreKept) {
  const RecordedDevicesCompute emulated(emulated_kernels());
  for (const auto& [make, is_captured] :
       {std::pair(MakeHook([] { return hooks::top_k({.ratio = 0.2}); }), true),
        std::pair(MakeHook([] { return hooks::power_sgd({.matrix_rank = 2, .start_step = 0, .min_compression = 1}); }),
                  false)})
    EXPECT_THAT(run_gpu_ranks(2,
                              [make = make, is_captured = is_captured](auto group, RecordingDevice& device) {
                                const Trainee trainee(group, device, make());
                                trainee.train(5, [&](int) { return trainee.step(); });
                                trainee.fill(5);
                                device.default_stream().synchronize();
                                device.clear_log();
                                trainee.step();
                                EXPECT_EQ(device.counts().pool_calls, 0);
                                EXPECT_GT(scratches_beside_stream_0(device), 0);
                                if (!is_captured) return;
                                CapturedStep step = trainee.captured({.warm_up = 1});
                                step();
                                device.default_stream().synchronize();
                                device.clear_log();
                                step();
                                expect_counts(step, 1, 1, 0);
                                EXPECT_GT(scratches_beside_stream_0(device), 0);
                                EXPECT_EQ(device.counts().allocation_nodes, 0)
                                    << "the graph has nodes that take memory";
                                step();
                                check_replicas_equal(*group, trainee.net->named_parameters(), "weights");
                              }),
                Each(""));
}

TEST(DeviceCompression, StateGoesThroughCheckpointsToGpusAndCpus) {
  for (const auto& [make, kernel] : makers()) {
    const std::string folder = temporary("device-hook-state");
    EXPECT_THAT(run_gpu_ranks(2,
                              [&, make = make](auto group, RecordingDevice& device) {
                                const CommHook saved = make(), loaded = make(), on_cpu = make();
                                const Trainee whole(group, device, saved), resumed(group, device, loaded),
                                    here(group, cpu_device(), on_cpu);
                                const auto parts = [&](const Trainee& of) {
                                  return train::CheckpointParts{
                                      .model = *of.net, .optimizer = *of.sgd, .ddp = *of.ddp, .group = group};
                                };
                                const auto run = [](const Trainee& of, int from, int to) {
                                  for (int number = from; number < to; ++number) of.fill(number), of.step();
                                };
                                run(whole, 0, 4);
                                train::save_checkpoint(folder, parts(whole));
                                group->barrier();
                                for (const Trainee* each : {&resumed, &here})
                                  EXPECT_TRUE(train::load_checkpoint(folder, parts(*each)).has_value());
                                EXPECT_EQ(state_of(loaded), state_of(saved));
                                EXPECT_EQ(state_of(on_cpu), state_of(saved));
                                run(whole, 4, 7);
                                run(resumed, 4, 7);
                                EXPECT_EQ(weights_of(*resumed.net), weights_of(*whole.net)) << saved->describe();
                              }),
                Each(""));
    std::filesystem::remove_all(folder);
  }
}

}  // namespace
}  // namespace lockstep::testing
